//! Attention over latents at the shape of Kimi K2 (64 heads, latents of 512 and 64) and the choice of tokens at that of GLM-5
//! (32 index heads of 128, 2048 tokens). One layer each.

use millrace_ops::{AttendLatent, Backend, KvFormat, KvLayout, Op, PlaneColumns, PlaneShape, SelectTokens, Selection, WriteKv};

use super::{AnyError, Bench};

const HEADS: usize = 64;
const LATENT: usize = 512;
const ROTARY: usize = 64;
const WIDTH: usize = LATENT + ROTARY;
const INDEX_HEADS: usize = 32;
const INDEX_WIDTH: usize = 128;
const LIMIT: usize = 2048;

/// (start, rows) of each sequence.
fn shapes() -> Vec<(String, Vec<(usize, usize)>)> {
    let mut shapes: Vec<(String, Vec<(usize, usize)>)> =
        [512, 4096, 16_384].map(|depth| (format!("latent decode 1 at {depth}"), vec![(depth, 1)])).to_vec();
    shapes.push(("latent decode 8 at 512".into(), vec![(512, 1); 8]));
    shapes.push(("latent prefill 64 at 0".into(), vec![(0, 64)]));
    shapes.push(("latent prefill 64 at 448".into(), vec![(448, 64)]));
    shapes
}

impl Bench {
    /// Times the shapes whose name contains `only`.
    pub(super) fn latents(&mut self, only: &str) -> Result<(), AnyError> {
        for format in [KvFormat::F32, KvFormat::Bf16, KvFormat::Fp8] {
            for (name, shapes) in shapes().into_iter().filter(|(name, _)| format!("{format} {name}").contains(only)) {
                self.latent(&name, format, &shapes)?;
            }
        }
        Ok(())
    }

    fn latent(&mut self, name: &str, format: KvFormat, sequences: &[(usize, usize)]) -> Result<(), AnyError> {
        let (step, pages) = self.step(sequences)?;
        let index_keys = Some(PlaneShape { layers: 1, width: INDEX_WIDTH });
        let layout = KvLayout::latent(PlaneShape { layers: 1, width: WIDTH }, index_keys, super::PAGE_TOKENS, format);
        let cache = self.cache(&step, layout, pages)?;
        let rows: usize = sequences.iter().map(|s| s.1).sum();
        let sequences_count = sequences.len();
        let (latent_queries, rotary_queries) = (self.floats(rows * HEADS * LATENT)?, self.floats(rows * HEADS * ROTARY)?);
        let x = self.floats(rows * (WIDTH + INDEX_WIDTH))?;
        let columns = |plane, offset| PlaneColumns { plane, layer: 0, offset };
        let write = WriteKv {
            cache: cache.clone(),
            step: step.clone(),
            x,
            stride: WIDTH + INDEX_WIDTH,
            planes: vec![columns(0, 0), columns(1, WIDTH)],
            rows,
            sequences: sequences_count,
        };
        let attend = AttendLatent {
            cache: cache.clone(),
            step: step.clone(),
            layer: 0,
            latent_queries,
            rotary_queries,
            stride: HEADS * ROTARY,
            rotary_offset: 0,
            rotary_step: ROTARY,
            heads: HEADS,
            latent: LATENT,
            rotary: ROTARY,
            scale: 0.07,
            selection: None,
            out: self.backend.allocate(rows * HEADS * LATENT * 4)?,
            rows,
            sequences: sequences_count,
        };
        let selection = Selection { tokens: self.backend.allocate(rows * LIMIT * 4)?, limit: LIMIT };
        let select = SelectTokens {
            cache,
            step,
            plane: 1,
            layer: 0,
            queries: self.floats(rows * INDEX_HEADS * INDEX_WIDTH)?,
            head_weights: self.floats(rows * INDEX_HEADS)?,
            heads: INDEX_HEADS,
            selection: selection.clone(),
            rows,
            sequences: sequences_count,
        };
        let sparse = AttendLatent { selection: Some(selection), ..attend.clone() };
        let write = self.time(&[Op::WriteKv(write)])?;
        let attend = self.time(&[Op::AttendLatent(attend)])?;
        // Tokens seen by all rows, by multiplications and additions of both products.
        let seen: usize = sequences.iter().flat_map(|s| (0..s.1).map(|i| s.0 + i + 1)).sum();
        let flops = 2.0 * (seen * HEADS * (WIDTH + LATENT)) as f64;
        let rate = |ms: f64| flops / ms / 1e6;
        println!("{format:>5}  {name:<25} attend {attend} ms ({:.0} Gflop/s)   write_kv {write} ms", rate(attend.median));
        let (select, sparse) = (self.time(&[Op::SelectTokens(select)])?, self.time(&[Op::AttendLatent(sparse)])?);
        println!("{format:>5}  {name:<25} select {select} ms, attend to those {sparse} ms");
        Ok(())
    }
}

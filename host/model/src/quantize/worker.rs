//! One worker: reads a piece of a tensor, converts it, writes it at its place. Knows no other worker.

use super::QuantizeError;
use super::fp8::quantize_block;
use super::int4::{GroupQuantizer, pack};
use super::layout::Place;
use super::plan::{Action, BLOCK, Step};
use super::report::Sums;
use super::source::{ElementType, OpenFiles, SourceTensor};
use super::values::{decode_floats, decode_fp8, e4m3_values, first_impossible, first_not_finite};
use super::work::{COPY_BYTES, Job, Piece};

/// Its buffers hold [`BLOCK`] rows of a matrix, or [`COPY_BYTES`].
pub(super) struct Worker<'a> {
    job: &'a Job<'a>,
    sources: OpenFiles<'a>,
    shards: OpenFiles<'a>,
    e4m3: [f32; 256],
    groups: GroupQuantizer,
    /// As stored.
    bytes: Vec<u8>,
    scale_bytes: Vec<u8>,
    values: Vec<f32>,
    /// To be written.
    codes: Vec<u8>,
    scales: Vec<u8>,
}

impl<'a> Worker<'a> {
    pub(super) fn new(job: &'a Job<'a>) -> Self {
        Self {
            job,
            sources: OpenFiles::new(&job.source.files),
            shards: OpenFiles::new(job.paths),
            e4m3: e4m3_values(),
            groups: GroupQuantizer::default(),
            bytes: Vec::new(),
            scale_bytes: Vec::new(),
            values: Vec::new(),
            codes: Vec::new(),
            scales: Vec::new(),
        }
    }

    /// What the piece lost, and how many bytes of the source it was.
    pub(super) fn run(&mut self, piece: Piece) -> Result<(Sums, u64), QuantizeError> {
        let step = self.job.plan.steps.get(piece.step);
        let Some((step, tensor)) = step.and_then(|step| Some((step, self.job.source.tensors.get(step.tensor)?))) else {
            return Ok((Sums::default(), 0));
        };
        match step.action {
            Action::Copy => self.copy(step, tensor, piece.part),
            Action::Fp8 | Action::Int4 { .. } => self.quantize(step, tensor, piece.part),
        }
    }

    fn copy(&mut self, step: &Step, tensor: &SourceTensor, part: usize) -> Result<(Sums, u64), QuantizeError> {
        let offset = part as u64 * COPY_BYTES;
        let count = tensor.bytes.saturating_sub(offset).min(COPY_BYTES);
        read(&mut self.sources, tensor, offset, count, &mut self.bytes)?;
        if let Some(at) = first_not_finite(tensor.kind, &self.bytes) {
            let width = tensor.kind.value_bytes().unwrap_or(1) as u64;
            return Err(self.damaged(tensor, offset / width + at as u64, "NaN or infinite"));
        }
        let Place { shard, offset: at } = self.place(step, 0);
        self.shards.write(shard, at.saturating_add(offset), &self.bytes)?;
        Ok((Sums::default(), count))
    }

    fn quantize(&mut self, step: &Step, tensor: &SourceTensor, part: usize) -> Result<(Sums, u64), QuantizeError> {
        let (rows, cols) = tensor.matrix().unwrap_or_default();
        let first = part.saturating_mul(BLOCK);
        let rows = rows.saturating_sub(first).min(BLOCK);
        let row_bytes = cols.saturating_mul(tensor.kind.value_bytes().unwrap_or_default()) as u64;
        let (offset, count) = (first as u64 * row_bytes, rows as u64 * row_bytes);
        read(&mut self.sources, tensor, offset, count, &mut self.bytes)?;
        match step.scales.and_then(|scales| self.job.source.tensors.get(scales)) {
            Some(scales) => {
                let count = cols.div_ceil(BLOCK) as u64 * 4;
                read(&mut self.sources, scales, part as u64 * count, count, &mut self.scale_bytes)?;
                if let Some(at) = first_not_finite(ElementType::F32, &self.scale_bytes) {
                    return Err(self.damaged(scales, part as u64 * count / 4 + at as u64, "NaN or infinite"));
                }
                decode_fp8(&self.e4m3, &self.bytes, &self.scale_bytes, cols, &mut self.values);
            }
            None => decode_floats(tensor.kind, &self.bytes, &mut self.values),
        }
        if let Some((at, value)) = first_impossible(&self.values) {
            let why = if value.is_finite() { "larger than 65504 in magnitude" } else { "NaN or infinite" };
            return Err(self.damaged(tensor, first as u64 * cols as u64 + at as u64, why));
        }
        let sums = match step.action {
            Action::Int4 { group } => self.int4(step, cols, group, first)?,
            _ => self.fp8(step, cols, part)?,
        };
        Ok((sums, count))
    }

    fn int4(&mut self, step: &Step, cols: usize, group: usize, first_row: usize) -> Result<Sums, QuantizeError> {
        self.codes.clear();
        self.scales.clear();
        let mut sums = Sums::default();
        let mut codes = vec![0i8; group];
        for values in self.values.chunks_exact(group) {
            let scale = self.groups.quantize(values, &mut codes);
            self.scales.extend(scale.to_le_bytes());
            pack(&codes, &mut self.codes);
            let scale = scale.to_f32();
            sums.add(values, codes.iter().map(|&code| f32::from(code) * scale));
        }
        let (row, groups) = (first_row as u64, (cols / group) as u64);
        self.write(step, 0, row * (cols / 2) as u64, Part::Codes)?;
        self.write(step, 1, row * groups * 2, Part::Scales)?;
        if first_row == 0
            && let Some(shape) = self.job.source.tensors.get(step.tensor).map(|tensor| &tensor.shape)
        {
            let bytes: Vec<u8> = shape.iter().flat_map(|&n| (n as u64).to_le_bytes()).collect();
            let Place { shard, offset } = self.place(step, 2);
            self.shards.write(shard, offset, &bytes)?;
        }
        Ok(sums)
    }

    /// One row of blocks.
    fn fp8(&mut self, step: &Step, cols: usize, block_row: usize) -> Result<Sums, QuantizeError> {
        self.codes.clear();
        self.codes.resize(self.values.len(), 0);
        self.scales.clear();
        let mut sums = Sums::default();
        let mut block = Vec::with_capacity(BLOCK * BLOCK);
        let mut codes = vec![0u8; BLOCK * BLOCK];
        for start in (0..cols).step_by(BLOCK) {
            let width = cols.saturating_sub(start).min(BLOCK);
            block.clear();
            block.extend(self.values.chunks_exact(cols).filter_map(|row| row.get(start..start + width)).flatten());
            let Some(codes) = codes.get_mut(..block.len()) else { continue };
            let scale = quantize_block(&block, codes);
            self.scales.extend(scale.to_le_bytes());
            for (row, from) in self.codes.chunks_exact_mut(cols).zip(codes.chunks_exact(width)) {
                if let Some(to) = row.get_mut(start..start + width) {
                    to.copy_from_slice(from);
                }
            }
            let table = &self.e4m3;
            sums.add(&block, codes.iter().map(|&code| table[usize::from(code)] * scale));
        }
        let row = block_row as u64;
        self.write(step, 0, row * (BLOCK * cols) as u64, Part::Codes)?;
        self.write(step, 1, row * cols.div_ceil(BLOCK) as u64 * 4, Part::Scales)?;
        Ok(sums)
    }

    fn write(&mut self, step: &Step, output: usize, offset: u64, part: Part) -> Result<(), QuantizeError> {
        let Place { shard, offset: at } = self.place(step, output);
        let bytes = match part {
            Part::Codes => &self.codes,
            Part::Scales => &self.scales,
        };
        self.shards.write(shard, at.saturating_add(offset), bytes)
    }

    /// Where output number `output` of a step lies.
    fn place(&self, step: &Step, output: usize) -> Place {
        self.job.layout.places.get(step.outputs.start.saturating_add(output)).copied().unwrap_or_default()
    }

    fn damaged(&self, tensor: &SourceTensor, element: u64, what: &str) -> QuantizeError {
        let cols = tensor.shape.last().copied().unwrap_or(1).max(1) as u64;
        let why = format!("is {what} in row {}, column {}; download the checkpoint again", element / cols, element % cols);
        QuantizeError::tensor(self.job.source.file_of(tensor), &tensor.name, why)
    }
}

/// Which buffer is written.
#[derive(Clone, Copy)]
enum Part {
    Codes,
    Scales,
}

/// Fills `into` with `count` bytes of a tensor.
fn read(
    files: &mut OpenFiles<'_>,
    tensor: &SourceTensor,
    offset: u64,
    count: u64,
    into: &mut Vec<u8>,
) -> Result<(), QuantizeError> {
    into.clear();
    into.resize(usize::try_from(count).unwrap_or(usize::MAX), 0);
    files.read(tensor.file, tensor.start.saturating_add(offset), into)
}

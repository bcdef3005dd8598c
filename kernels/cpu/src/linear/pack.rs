//! Packing: settles the layout that holds all parts, then fills panels, on several threads where it pays.
//! Knows nothing of products.

use millrace_ops::{TensorFormat, TensorView, WeightFormat};

use super::layout::{BLOCK_COLS, Codes, DenseLayout, Element, IntLayout, Offset, PANEL_ROWS, PanelLayout};
use super::quantize::NotFinite;
use super::scale_type::ScaleType;
use super::source::{Fp8Part, IntRow, fp8_values, int4_scales, round_to_bf16};
use super::storage::Storage;
use super::weight::{CpuCompute, PackedWeight};
use crate::Isa;

/// Weights of at least this many elements are packed on several threads.
const PARALLEL_ELEMENTS: usize = 1 << 18;
const MAX_THREADS: usize = 16;

/// Everything that filling a panel needs to know.
struct Packing<'a> {
    parts: &'a [TensorView<'a>],
    /// One for each part, for Fp8 only.
    fp8: Vec<Fp8Part<'a>>,
    cols: usize,
    /// What the format holds.
    stored: PanelLayout,
    /// What the panels hold: `stored`, or f32 for reference products.
    layout: PanelLayout,
}

pub(super) fn pack(
    parts: &[TensorView<'_>],
    format: WeightFormat,
    compute: CpuCompute,
    isa: Isa,
) -> Result<PackedWeight, String> {
    if !isa.supported() {
        return Err(format!("this machine has no {isa}"));
    }
    let (rows, cols) = shape(parts)?;
    let stored = match format {
        WeightFormat::F32 => PanelLayout::Dense(DenseLayout { element: Element::F32, cols }),
        WeightFormat::Bf16 => PanelLayout::Dense(DenseLayout { element: Element::Bf16, cols }),
        WeightFormat::Fp8 => PanelLayout::Dense(DenseLayout { element: Element::Fp8, cols }),
        WeightFormat::Int8 | WeightFormat::Int4 => PanelLayout::Int(int_layout(parts, format)?),
    };
    let layout = match compute {
        CpuCompute::Fast | CpuCompute::Precise => stored,
        CpuCompute::Reference => PanelLayout::Dense(DenseLayout { element: Element::F32, cols }),
    };
    let fp8 = match format {
        WeightFormat::Fp8 => {
            parts.iter().map(|part| Fp8Part::new(part).map_err(|_| not_finite(part))).collect::<Result<_, _>>()?
        }
        _ => Vec::new(),
    };
    let bytes = rows.div_ceil(PANEL_ROWS).checked_mul(layout.panel_bytes()).ok_or("the weight's size overflows")?;
    let mut storage = Storage::zeroed(bytes)?;
    Packing { parts, fp8, cols, stored, layout }.fill(rows, storage.as_mut_slice())?;
    Ok(PackedWeight { rows, cols, format, compute, layout, isa, storage })
}

/// Rows of all parts together, and their columns.
fn shape(parts: &[TensorView<'_>]) -> Result<(usize, usize), String> {
    let first = parts.first().ok_or("a weight needs at least one tensor")?;
    let mut rows = 0usize;
    for part in parts {
        if part.cols != first.cols || part.cols == 0 || part.rows == 0 {
            let (a, b) = (part, first);
            return Err(format!(
                "`{}` is {}x{}: it cannot be stacked on {} columns of `{}`",
                a.name, a.rows, a.cols, b.cols, b.name
            ));
        }
        rows = rows.checked_add(part.rows).ok_or("the weight has too many rows")?;
    }
    Ok((rows, first.cols))
}

/// The layout that holds all parts without loss where their codes are kept.
fn int_layout(parts: &[TensorView<'_>], format: WeightFormat) -> Result<IntLayout, String> {
    let four_bit = format == WeightFormat::Int4;
    let any = |wanted: TensorFormat| parts.iter().any(|part| part.format() == wanted);
    let zeros = any(TensorFormat::Int4ZeroPoint);
    let blocks = parts[0].cols.div_ceil(BLOCK_COLS);
    // In 8 bits a zero point is a shift of the codes.
    let codes = match four_bit {
        true => Codes::Nibbles,
        false if !zeros && parts.iter().all(|part| part.format().is_four_bit()) => Codes::Narrow,
        false => Codes::Wide,
    };
    let (mut scale, mut span) = (None, None);
    for part in parts {
        let (own_scale, own_span) = own_scales(part, four_bit, blocks)?;
        scale = own_scale.map_or(scale, |own| Some(scale.map_or(own, |scale: ScaleType| scale.meet(own))));
        span = Some(span.map_or(own_span, |span| common_divisor(span, own_span)));
    }
    let scale = scale.unwrap_or(ScaleType::Bf16);
    let offset = match (any(TensorFormat::Q4_1), zeros && four_bit) {
        (true, _) => Offset::Minimum,
        (false, true) => Offset::Zero,
        (false, false) => Offset::Centre,
    };
    if offset == Offset::Minimum && (zeros || scale != ScaleType::F16) {
        let (name, rest) = (parts[0].name, "minima in F16 cannot be stacked on zero points or other scales");
        return Err(format!("the parts from `{name}` on mix Q4_1 with packed INT4: {rest}; use bf16"));
    }
    Ok(IntLayout { codes, scale, offset, blocks, span: span.unwrap_or(1) })
}

/// Type of the scales that a part brings along (none where it is to be quantized), and how many blocks share one.
fn own_scales(part: &TensorView<'_>, four_bit: bool, blocks: usize) -> Result<(Option<ScaleType>, usize), String> {
    if let Some((scales, group)) = int4_scales(part) {
        let span = match group {
            _ if group >= part.cols => blocks,
            _ if group > 0 && group.is_multiple_of(BLOCK_COLS) => group / BLOCK_COLS,
            _ => {
                let name = part.name;
                return Err(format!(
                    "`{name}` has groups of {group}; only multiples of {BLOCK_COLS} are held as integers, use bf16"
                ));
            }
        };
        return Ok((Some(ScaleType::of(&scales)), span));
    }
    let kept = match part.format() {
        TensorFormat::Q4_0 | TensorFormat::Q4_1 => true,
        TensorFormat::Q8_0 => !four_bit,
        _ => false,
    };
    Ok((kept.then_some(ScaleType::F16), 1))
}

fn common_divisor(a: usize, b: usize) -> usize {
    if b == 0 { a } else { common_divisor(b, a % b) }
}

fn not_finite(part: &TensorView<'_>) -> String {
    format!("`{}` holds values or scales that are not finite (or overflow); the checkpoint is damaged or needs bf16", part.name)
}

impl Packing<'_> {
    fn fill(&self, rows: usize, bytes: &mut [u8]) -> Result<(), String> {
        let panel_bytes = self.layout.panel_bytes();
        let panels = rows.div_ceil(PANEL_ROWS);
        let threads = match rows * self.cols {
            0..PARALLEL_ELEMENTS => 1,
            _ => std::thread::available_parallelism().map_or(1, |n| n.get().min(MAX_THREADS)),
        };
        let share = panels.div_ceil(threads);
        std::thread::scope(|scope| {
            let run = |(i, share_bytes): (usize, &mut [u8])| {
                share_bytes.chunks_mut(panel_bytes).enumerate().try_for_each(|(j, panel)| self.fill_panel(i * share + j, panel))
            };
            let mut shares = bytes.chunks_mut(share * panel_bytes).enumerate();
            let own = shares.next();
            let others: Vec<_> = shares.map(|share| scope.spawn(move || run(share))).collect();
            let mut result = own.map_or(Ok(()), run);
            for other in others {
                result = result.and(other.join().unwrap_or_else(|_| Err("packing stopped unexpectedly".into())));
            }
            result
        })
    }

    /// The part that holds row `row` of the weight, and its row there.
    fn locate(&self, row: usize) -> Option<(usize, usize)> {
        let mut within = row;
        for (i, part) in self.parts.iter().enumerate() {
            if within < part.rows {
                return Some((i, within));
            }
            within -= part.rows;
        }
        None
    }

    fn fill_panel(&self, index: usize, panel: &mut [u8]) -> Result<(), String> {
        let rows = (0..PANEL_ROWS).map_while(|row| self.locate(index * PANEL_ROWS + row)).enumerate();
        let mut line = Line::new(self);
        for (row, (part, within)) in rows {
            line.take(self, part, within).map_err(|NotFinite| not_finite(&self.parts[part]))?;
            match &self.layout {
                PanelLayout::Int(layout) => put_codes(layout, &line.int, row, panel),
                PanelLayout::Dense(layout) => line.put_dense(layout, row, panel),
            }
        }
        Ok(())
    }
}

/// One row between its tensor and its panel; which of the fields are used depends on the layouts.
struct Line {
    int: IntRow,
    values: Vec<f32>,
    fp8_codes: Vec<u8>,
    fp8_scales: Vec<f32>,
}

impl Line {
    fn new(packing: &Packing<'_>) -> Self {
        let cols = packing.cols;
        let empty = IntLayout { codes: Codes::Wide, scale: ScaleType::F16, offset: Offset::Centre, blocks: 0, span: 1 };
        let layout = if let PanelLayout::Int(layout) = &packing.stored { layout } else { &empty };
        Self {
            int: IntRow::new(layout, cols),
            values: vec![0.0; cols],
            fp8_codes: vec![0; cols],
            fp8_scales: vec![0.0; cols.div_ceil(super::layout::DENSE_BLOCK_COLS)],
        }
    }

    /// Takes a row as the stored layout holds it; its values too where the panels are dense.
    fn take(&mut self, packing: &Packing<'_>, part: usize, row: usize) -> Result<(), NotFinite> {
        let view = &packing.parts[part];
        match &packing.stored {
            PanelLayout::Int(layout) => {
                self.int.take(view, row, layout)?;
                if packing.layout != packing.stored {
                    self.int.values(layout, &mut self.values);
                }
            }
            PanelLayout::Dense(DenseLayout { element: Element::Fp8, .. }) => {
                packing.fp8[part].take(row, &mut self.fp8_codes, &mut self.fp8_scales)?;
                fp8_values(&self.fp8_codes, &self.fp8_scales, &mut self.values);
            }
            PanelLayout::Dense(DenseLayout { element, .. }) => {
                view.row_values(row, &mut self.values);
                if *element == Element::Bf16 {
                    round_to_bf16(&mut self.values);
                }
            }
        }
        Ok(())
    }

    fn put_dense(&self, layout: &DenseLayout, row: usize, panel: &mut [u8]) {
        for col in 0..layout.cols {
            let at = layout.element_offset(row, col);
            match layout.element {
                Element::F32 => panel[at..at + 4].copy_from_slice(&self.values[col].to_le_bytes()),
                // Already rounded: the upper half is the value.
                Element::Bf16 => panel[at..at + 2].copy_from_slice(&self.values[col].to_le_bytes()[2..]),
                Element::Fp8 => panel[at] = self.fp8_codes[col],
            }
        }
        if layout.element == Element::Fp8 {
            for (block, scale) in self.fp8_scales.iter().enumerate() {
                let at = layout.scales_offset() + block * 64 + row * 4;
                panel[at..at + 4].copy_from_slice(&(scale * 256.0).to_le_bytes());
            }
        }
    }
}

fn put_codes(layout: &IntLayout, line: &IntRow, row: usize, panel: &mut [u8]) {
    let (codes, scales) = panel.split_at_mut(layout.scales_offset());
    for (block, from) in codes.chunks_exact_mut(layout.code_bytes()).zip(line.codes.chunks_exact(BLOCK_COLS)) {
        for (j, to) in block.chunks_exact_mut(64).enumerate() {
            let to = &mut to[row * 4..row * 4 + 4];
            match layout.codes {
                Codes::Nibbles => {
                    for (i, byte) in to.iter_mut().enumerate() {
                        *byte = from[4 * j + i] | from[16 + 4 * j + i] << 4;
                    }
                }
                Codes::Narrow | Codes::Wide => to.copy_from_slice(&from[4 * j..4 * j + 4]),
            }
        }
    }
    for (i, span) in scales.chunks_exact_mut(layout.scale_bytes()).take(layout.spans()).enumerate() {
        layout.scale.put(line.scales[i], &mut span[row * layout.scale.bytes()..]);
        let beside = layout.beside_offset(row);
        match layout.offset {
            Offset::Centre => {}
            Offset::Minimum => ScaleType::F16.put(line.minima[i], &mut span[beside..]),
            Offset::Zero => span[beside] = line.zeros[i],
        }
    }
}

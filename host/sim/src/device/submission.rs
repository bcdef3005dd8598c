//! One submission as the simulator sees it before it runs: what it is for, which pages it names, and where in it something can happen.
//! Reads the operations and the uploads in front of them; knows no machine.

use millrace_ops::{Buffer, CheckPoint, KvCache, Op, Segment, StepBuffers};

/// A page under the tag that a table or a staged page names it by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Named {
    pub(crate) page: u32,
    pub(crate) tag: u64,
}

/// What a submission is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Step,
    Export,
    Import,
    /// Tag changes alone.
    Tags,
}

/// A moment within a submission at which a page can change hands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Point {
    BeforeHead,
    BeforeWrite,
    BeforeAttention,
    BeforeTail,
    BehindTail,
    BeforeExport,
    BehindExport,
    BeforeImport,
    BehindImport,
}

impl Point {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::BeforeHead => "before_head_check",
            Self::BeforeWrite => "before_kv_write",
            Self::BeforeAttention => "before_attention",
            Self::BeforeTail => "before_tail_check",
            Self::BehindTail => "behind_tail_check",
            Self::BeforeExport => "before_export",
            Self::BehindExport => "behind_export",
            Self::BeforeImport => "before_import",
            Self::BehindImport => "behind_import",
        }
    }

    pub(crate) fn of(kind: Kind) -> &'static [Self] {
        match kind {
            Kind::Step => &[Self::BeforeHead, Self::BeforeWrite, Self::BeforeAttention, Self::BeforeTail, Self::BehindTail],
            Kind::Export => &[Self::BeforeExport, Self::BehindExport],
            Kind::Import => &[Self::BeforeImport, Self::BehindImport],
            Kind::Tags => &[],
        }
    }
}

/// Operations that were submitted together.
pub(crate) struct Submission {
    pub(crate) ops: Vec<Op>,
    pub(crate) kind: Kind,
    /// Whose pages it names; none for tag changes alone.
    pub(crate) cache: Option<KvCache>,
    /// Of each row of a step, the pages of its table; of a copy, all in one.
    pub(crate) rows: Vec<Vec<Named>>,
    /// Of all rows of a step.
    pub(crate) tokens: u32,
    /// Index of the first operation behind uploads and tag changes.
    begin: usize,
    /// Index of the tail check, or the end.
    tail: usize,
}

impl Submission {
    pub(crate) fn of(ops: Vec<Op>) -> Self {
        let quiet = |op: &Op| matches!(op, Op::Upload(_) | Op::ApplyTags(_));
        let begin = ops.iter().position(|op| !quiet(op)).unwrap_or(ops.len());
        let is_tail = |op: &Op| matches!(op, Op::CheckTags(check) if check.point == CheckPoint::Tail);
        let tail = ops.iter().position(is_tail).unwrap_or(ops.len());
        let (kind, cache, rows) = describe(&ops);
        Self { kind, cache, rows, tokens: tokens(&ops), begin, tail, ops }
    }

    /// Index of the operation in front of which a moment is.
    pub(crate) fn index(&self, point: Point) -> usize {
        let first = |wanted: fn(&Op) -> bool| self.ops.iter().position(wanted).unwrap_or(self.begin);
        match point {
            Point::BeforeHead | Point::BeforeExport | Point::BeforeImport => self.begin,
            Point::BeforeWrite => first(|op| matches!(op, Op::WriteKv(_))),
            Point::BeforeAttention => first(|op| matches!(op, Op::Attend(_))),
            Point::BeforeTail => self.tail,
            Point::BehindTail | Point::BehindExport | Point::BehindImport => self.ops.len(),
        }
    }

    /// Where it begins to use pages, and where it has used them: what is wrong at either must not be published.
    pub(crate) fn judged_at(&self) -> [usize; 2] {
        [self.begin, self.tail]
    }

    pub(crate) fn named(&self) -> impl Iterator<Item = Named> {
        self.rows.iter().flatten().copied()
    }
}

fn tokens(ops: &[Op]) -> u32 {
    let of = |op: &Op| match op {
        Op::WriteKv(write) => {
            let segments = uploaded(ops, &write.step.segments);
            Some((0..write.sequences).map(|sequence| segment(segments, sequence).rows).sum())
        }
        _ => None,
    };
    ops.iter().find_map(of).unwrap_or(0)
}

fn describe(ops: &[Op]) -> (Kind, Option<KvCache>, Vec<Vec<Named>>) {
    for op in ops {
        match op {
            Op::WriteKv(write) => {
                let rows = tables(ops, &write.step, write.sequences);
                return (Kind::Step, Some(write.cache.clone()), rows);
            }
            Op::ExportPages(export) => {
                return (Kind::Export, Some(export.cache.clone()), vec![staged(ops, &export.pages, export.count)]);
            }
            Op::ImportPages(import) => {
                return (Kind::Import, Some(import.cache.clone()), vec![staged(ops, &import.pages, import.count)]);
            }
            _ => {}
        }
    }
    (Kind::Tags, None, Vec::new())
}

/// Whether two handles are of one piece of memory.
pub(crate) fn same(a: &Buffer, b: &Buffer) -> bool {
    std::ptr::addr_eq(a.memory(), b.memory())
}

/// What was uploaded into a buffer last.
fn uploaded<'a>(ops: &'a [Op], buffer: &Buffer) -> &'a [u8] {
    let found = ops.iter().rev().find_map(|op| match op {
        Op::Upload(upload) if same(&upload.to, buffer) => Some(upload.bytes.as_slice()),
        _ => None,
    });
    found.unwrap_or(&[])
}

pub(crate) fn word(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).map_or(0, |b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
}

pub(crate) fn double(bytes: &[u8], at: usize) -> u64 {
    u64::from(word(bytes, at)) | u64::from(word(bytes, at + 4)) << 32
}

pub(crate) fn segment(bytes: &[u8], index: usize) -> Segment {
    let at = index * size_of::<Segment>();
    Segment { first_row: word(bytes, at), rows: word(bytes, at + 4), start: word(bytes, at + 8), pages: word(bytes, at + 12) }
}

/// Entry `index` of a page table.
pub(crate) fn table_entry(bytes: &[u8], index: usize) -> Named {
    Named { page: word(bytes, index * 16), tag: double(bytes, index * 16 + 8) }
}

fn tables(ops: &[Op], step: &StepBuffers, sequences: usize) -> Vec<Vec<Named>> {
    let (segments, tables) = (uploaded(ops, &step.segments), uploaded(ops, &step.tables));
    let table = |sequence: usize| {
        let pages = segment(segments, sequence).pages as usize;
        (0..pages).map(|page| table_entry(tables, sequence * step.table_stride + page)).collect()
    };
    (0..sequences).map(table).collect()
}

fn staged(ops: &[Op], pages: &Buffer, count: usize) -> Vec<Named> {
    let bytes = uploaded(ops, pages);
    (0..count).map(|index| Named { page: word(bytes, index * 32 + 4), tag: double(bytes, index * 32 + 8) }).collect()
}

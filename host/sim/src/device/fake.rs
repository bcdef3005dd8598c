//! The fake engine: runs tag changes, checks, writes, copies and draws as the operations say, and has no arithmetic. Pages hold
//! [`Entry`]s, so each read is judged: a row that read what is not its own draws [`POISON`].
//!
//! It does not know what the host believes; it reads tables and tags as a device does.

use millrace_ops::{
    ApplyTags, Attend, BackendError, Buffer, CheckPoint, CheckTags, ExportPages, ImportPages, KvCache, Op, PublishVerdicts,
    RowStatus, Sample, StepBuffers, StepRecord, WriteKv,
};

use super::entry::{ENTRY_BYTES, Entry, POISON, attend, draw};
use super::fake_memory::FakeMemory;
use super::machine::{Alien, Machine, Reader};
use super::submission::{Named, double, segment, table_entry, word};

/// Whether writes into pages look at the tag first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WriteFence {
    On,
    Off,
}

pub(crate) struct FakeMachine {
    fence: WriteFence,
    readers: Vec<Reader>,
    /// Of each row: a page of its table was another's when the step began to use pages.
    stale_at_head: Vec<bool>,
    /// What attention read, of each row.
    read: Vec<Seen>,
    violations: Vec<String>,
}

/// What a row's attention came to.
#[derive(Debug, Clone, Copy, Default)]
struct Seen {
    chain: u64,
    foreign: bool,
    not_finite: bool,
}

/// The fake engine's view of a step: whose pages, and the arrays that say which.
struct Step {
    segments: Vec<u8>,
    tables: Vec<u8>,
    stride: usize,
    page_tokens: usize,
    page_bytes: usize,
}

impl Step {
    fn of(cache: &KvCache, step: &StepBuffers) -> Result<Self, BackendError> {
        let copy = |buffer: &Buffer| FakeMemory::of(buffer).map(|memory| memory.with(|bytes| bytes.to_vec()));
        Ok(Self {
            segments: copy(&step.segments)?,
            tables: copy(&step.tables)?,
            stride: step.table_stride,
            page_tokens: cache.layout.page_tokens,
            page_bytes: cache.layout.page_bytes(),
        })
    }

    fn table(&self, sequence: usize) -> impl Iterator<Item = Named> {
        let pages = segment(&self.segments, sequence).pages as usize;
        (0..pages).map(move |page| table_entry(&self.tables, sequence * self.stride + page))
    }

    /// The table's entry of a position, and where that position lies in the pool's bytes.
    fn place(&self, sequence: usize, position: usize) -> (Named, usize) {
        let named = table_entry(&self.tables, sequence * self.stride + position / self.page_tokens);
        (named, named.page as usize * self.page_bytes + position % self.page_tokens * ENTRY_BYTES)
    }
}

fn carries(tags: &[u8], named: Named) -> bool {
    double(tags, named.page as usize * 8) == named.tag
}

impl FakeMachine {
    pub(crate) fn new(fence: WriteFence) -> Self {
        Self { fence, readers: Vec::new(), stale_at_head: Vec::new(), read: Vec::new(), violations: Vec::new() }
    }

    fn reader(&self, sequence: usize) -> Reader {
        let nobody = Reader { seq: millrace_core::SeqId(0), tenant: millrace_core::TenantId(0) };
        self.readers.get(sequence).copied().unwrap_or(nobody)
    }

    fn apply(&self, op: &ApplyTags) -> Result<(), BackendError> {
        let deltas = FakeMemory::of(&op.deltas)?.with(|bytes| bytes[..op.count * 16].to_vec());
        let page_bytes = op.cache.layout.page_bytes();
        let (tags, pages) = (FakeMemory::of(&op.cache.tags)?, FakeMemory::of(&op.cache.pages)?);
        for delta in deltas.chunks_exact(16) {
            let page = word(delta, 0) as usize;
            tags.with(|tags| tags[page * 8..page * 8 + 8].copy_from_slice(&delta[8..16]));
            if word(delta, 4) != 0 {
                pages.with(|pages| pages[page * page_bytes..(page + 1) * page_bytes].fill(0));
            }
        }
        Ok(())
    }

    /// Looks once, when a step begins to use pages, whatever the host asks for.
    fn note_head(&mut self, cache: &KvCache, step: &StepBuffers, sequences: usize) -> Result<(), BackendError> {
        let view = Step::of(cache, step)?;
        let stale =
            |tags: &mut [u8]| (0..sequences).map(|sequence| view.table(sequence).any(|named| !carries(tags, named))).collect();
        self.stale_at_head = FakeMemory::of(&cache.tags)?.with(stale);
        Ok(())
    }

    fn check(&mut self, op: &CheckTags) -> Result<(), BackendError> {
        let view = Step::of(&op.cache, &op.step)?;
        if op.point == CheckPoint::Head {
            self.note_head(&op.cache, &op.step, op.sequences)?;
        }
        let tags = FakeMemory::of(&op.cache.tags)?.with(|tags| tags.to_vec());
        let verdicts = FakeMemory::of(&op.step.verdicts)?;
        for sequence in 0..op.sequences {
            let stale = view.table(sequence).any(|named| !carries(&tags, named));
            let flagged = verdicts.with(|verdicts| {
                let before = op.point == CheckPoint::Tail && word(verdicts, sequence * 4) != 0;
                put_word(verdicts, sequence, u32::from(stale || before));
                stale || before
            });
            if flagged && op.point == CheckPoint::Tail {
                FakeMemory::of(&op.step.records)?.with(|records| {
                    let record = StepRecord(double(records, sequence * 8)).with_status(RowStatus::StalePage);
                    put_double(records, sequence, record.0);
                });
            }
        }
        Ok(())
    }

    fn write(&mut self, op: &WriteKv) -> Result<(), BackendError> {
        let view = Step::of(&op.cache, &op.step)?;
        let tokens = FakeMemory::of(&op.step.tokens)?.with(|bytes| bytes.to_vec());
        let tags = FakeMemory::of(&op.cache.tags)?.with(|tags| tags.to_vec());
        let (pages, verdicts) = (FakeMemory::of(&op.cache.pages)?, FakeMemory::of(&op.step.verdicts)?);
        for sequence in 0..op.sequences {
            let (segment, reader) = (segment(&view.segments, sequence), self.reader(sequence));
            for row in 0..segment.rows as usize {
                if verdicts.with(|verdicts| word(verdicts, sequence * 4)) != 0 {
                    break;
                }
                let position = segment.start as usize + row;
                let (named, at) = view.place(sequence, position);
                if !carries(&tags, named) {
                    if self.fence == WriteFence::On {
                        verdicts.with(|verdicts| put_word(verdicts, sequence, 1));
                        break;
                    }
                    self.violations.push(format!("sequence {} wrote into page {}, which is another's", reader.seq, named.page));
                }
                let token = word(&tokens, (segment.first_row as usize + row) * 4);
                let before = (position > 0).then(|| pages.with(|pages| self.judged(pages, &view, sequence, position - 1)));
                let entry = Entry::following(before.as_ref(), token, position as u32);
                let entry = Entry { page: named.page, tag: named.tag, tenant: reader.tenant.0, seq: reader.seq.0, ..entry };
                pages.with(|pages| pages[at..at + ENTRY_BYTES].copy_from_slice(&entry.bytes()));
            }
        }
        Ok(())
    }

    /// The entry of a position, tainted if it is not the reader's to read.
    fn judged(&self, pages: &[u8], view: &Step, sequence: usize, position: usize) -> Entry {
        let (named, at) = view.place(sequence, position);
        let entry = Entry::read(&pages[at..at + ENTRY_BYTES]);
        let own = entry.is_valid()
            && entry.page == named.page
            && entry.tag == named.tag
            && entry.position as usize == position
            && entry.tenant == self.reader(sequence).tenant.0;
        if own { entry } else { entry.tainted() }
    }

    fn attend(&mut self, op: &Attend) -> Result<(), BackendError> {
        let view = Step::of(&op.cache, &op.step)?;
        let (pages, verdicts) = (FakeMemory::of(&op.cache.pages)?, FakeMemory::of(&op.step.verdicts)?);
        self.read = vec![Seen::default(); op.sequences];
        for sequence in 0..op.sequences {
            if verdicts.with(|verdicts| word(verdicts, sequence * 4)) != 0 {
                continue;
            }
            if self.stale_at_head.get(sequence).copied().unwrap_or(false) {
                let seq = self.reader(sequence).seq;
                self.violations.push(format!("sequence {seq} attended to a page that was another's when its step began"));
            }
            let segment = segment(&view.segments, sequence);
            let see = |pages: &mut [u8]| {
                let mut seen = Seen::default();
                for position in 0..(segment.start + segment.rows) as usize {
                    let entry = self.judged(pages, &view, sequence, position);
                    seen.chain = attend(seen.chain, entry.chain);
                    seen.foreign |= entry.is_tainted();
                    seen.not_finite |= entry.is_nan();
                }
                seen
            };
            let seen = pages.with(see);
            self.read[sequence] = seen;
        }
        Ok(())
    }

    fn sample(&mut self, op: &Sample) -> Result<(), BackendError> {
        let samplers = FakeMemory::of(&op.step.samplers)?.with(|bytes| bytes[..op.count * 32].to_vec());
        let (records, verdicts) = (FakeMemory::of(&op.step.records)?, FakeMemory::of(&op.step.verdicts)?);
        let drawn = samplers.chunks_exact(32).map(|sampler| word(sampler, 28) as usize);
        let drawn: Vec<usize> = drawn.collect();
        for sequence in 0..op.sequences {
            let seen = self.read.get(sequence).copied().unwrap_or_default();
            let flagged = verdicts.with(|verdicts| word(verdicts, sequence * 4)) != 0;
            let samples = drawn.contains(&sequence);
            let (token, status) = match (flagged, samples, seen) {
                (true, ..) => (0, RowStatus::StalePage),
                (_, false, _) => (0, RowStatus::Ok),
                (.., Seen { not_finite: true, .. }) => (0, RowStatus::NotFinite),
                (.., Seen { foreign: true, .. }) => (POISON, RowStatus::Ok),
                (.., Seen { chain, .. }) => (draw(chain), RowStatus::Ok),
            };
            records.with(|records| put_double(records, sequence, StepRecord::new(token, status, op.step_number).0));
        }
        Ok(())
    }

    fn export(&self, op: &ExportPages) -> Result<(), BackendError> {
        let staged = FakeMemory::of(&op.pages)?.with(|bytes| bytes[..op.count * 32].to_vec());
        let size = op.cache.layout.page_bytes();
        for page in staged.chunks_exact(32) {
            let (slot, named) = (word(page, 0) as usize, Named { page: word(page, 4), tag: double(page, 8) });
            if !FakeMemory::of(&op.cache.tags)?.with(|tags| carries(tags, named)) {
                FakeMemory::of(&op.verdicts)?.with(|verdicts| put_word(verdicts, word(page, 20) as usize, 1));
                continue;
            }
            let from = named.page as usize * size;
            let mut bytes = FakeMemory::of(&op.cache.pages)?.with(|pages| pages[from..from + size].to_vec());
            // In staging, an entry's page and tag say whether they were its own where it came from.
            for at in (0..op.cache.layout.page_tokens).map(|slot| slot * ENTRY_BYTES) {
                let entry = Entry::read(&bytes[at..at + ENTRY_BYTES]);
                if entry.is_valid() && (entry.page != named.page || entry.tag != named.tag) {
                    bytes[at..at + ENTRY_BYTES].copy_from_slice(&entry.tainted().bytes());
                }
            }
            FakeMemory::of(&op.staging)?.with(|staging| staging[slot * size..(slot + 1) * size].copy_from_slice(&bytes));
        }
        Ok(())
    }

    fn import(&mut self, op: &ImportPages) -> Result<(), BackendError> {
        let staged = FakeMemory::of(&op.pages)?.with(|bytes| bytes[..op.count * 32].to_vec());
        let (size, from_size) = (op.cache.layout.page_bytes(), op.from.page_bytes());
        for page in staged.chunks_exact(32) {
            let (slot, named) = (word(page, 0) as usize, Named { page: word(page, 4), tag: double(page, 8) });
            if !FakeMemory::of(&op.cache.tags)?.with(|tags| carries(tags, named)) {
                FakeMemory::of(&op.verdicts)?.with(|verdicts| put_word(verdicts, word(page, 20) as usize, 1));
                if self.fence == WriteFence::On {
                    continue;
                }
                self.violations.push(format!("an import wrote into page {}, which is another's", named.page));
            }
            let tokens = word(page, 16) as usize;
            let bytes = FakeMemory::of(&op.staging)?
                .with(|staging| staging[slot * from_size..slot * from_size + tokens * ENTRY_BYTES].to_vec());
            FakeMemory::of(&op.cache.pages)?.with(|pages| {
                let to = named.page as usize * size;
                for (index, entry) in bytes.chunks_exact(ENTRY_BYTES).enumerate() {
                    let entry = Entry { page: named.page, tag: named.tag, ..Entry::read(entry) };
                    let at = to + index * ENTRY_BYTES;
                    pages[at..at + ENTRY_BYTES].copy_from_slice(&entry.bytes());
                }
            });
        }
        Ok(())
    }

    fn publish(op: &PublishVerdicts) -> Result<(), BackendError> {
        let verdicts = FakeMemory::of(&op.verdicts)?.with(|verdicts| verdicts.to_vec());
        FakeMemory::of(&op.records)?.with(|records| {
            for index in 0..op.count {
                let status = if word(&verdicts, index * 4) == 0 { RowStatus::Ok } else { RowStatus::StalePage };
                put_double(records, index, StepRecord::new(0, status, op.step_number).0);
            }
        });
        Ok(())
    }
}

fn put_word(bytes: &mut [u8], index: usize, value: u32) {
    bytes[index * 4..index * 4 + 4].copy_from_slice(&value.to_le_bytes());
}

fn put_double(bytes: &mut [u8], index: usize, value: u64) {
    bytes[index * 8..index * 8 + 8].copy_from_slice(&value.to_le_bytes());
}

impl Machine for FakeMachine {
    fn begin(&mut self, readers: Vec<Reader>) {
        self.readers = readers;
        self.stale_at_head.clear();
        self.read.clear();
    }

    fn run(&mut self, ops: &[Op]) -> Result<(), BackendError> {
        for op in ops {
            match op {
                Op::Upload(upload) => FakeMemory::of(&upload.to)?
                    .with(|bytes| bytes[upload.offset..upload.offset + upload.bytes.len()].copy_from_slice(&upload.bytes)),
                Op::ApplyTags(op) => self.apply(op)?,
                Op::CheckTags(op) => self.check(op)?,
                // A step without a head check begins to use pages here.
                Op::WriteKv(op) => {
                    if self.stale_at_head.is_empty() {
                        self.note_head(&op.cache, &op.step, op.sequences)?;
                    }
                    self.write(op)?;
                }
                Op::Attend(op) => self.attend(op)?,
                Op::Sample(op) => self.sample(op)?,
                Op::ExportPages(op) => self.export(op)?,
                Op::ImportPages(op) => self.import(op)?,
                Op::PublishVerdicts(op) => Self::publish(op)?,
                Op::Download(op) => FakeMemory::of(&op.from)?.with(|bytes| {
                    let pieces = bytes.chunks_exact(op.piece_bytes).take(op.to.count());
                    pieces.enumerate().for_each(|(piece, bytes)| op.to.put(piece, bytes));
                }),
                // Arithmetic on activations.
                _ => {}
            }
        }
        Ok(())
    }

    fn read(&self, from: &Buffer, offset: usize, out: &mut [u8]) -> Result<(), BackendError> {
        FakeMemory::of(from)?.with(|bytes| out.copy_from_slice(&bytes[offset..offset + out.len()]));
        Ok(())
    }

    fn read_records(&self, records: &Buffer, out: &mut [StepRecord]) -> Result<(), BackendError> {
        FakeMemory::of(records)?.with(|bytes| {
            for (index, record) in out.iter_mut().enumerate() {
                *record = StepRecord(double(bytes, index * 8));
            }
        });
        Ok(())
    }

    fn alien(&self, cache: &KvCache, page: u32, alien: Alien) -> Vec<u8> {
        let mut bytes = vec![0; cache.layout.page_bytes()];
        for position in 0..cache.layout.page_tokens {
            let entry = match alien {
                Alien::Intruder { tag } => Entry::of_intruder(page, tag, position as u32),
                Alien::NotFinite => Entry::default().not_a_number(),
            };
            bytes[position * ENTRY_BYTES..(position + 1) * ENTRY_BYTES].copy_from_slice(&entry.bytes());
        }
        bytes
    }

    fn take_violations(&mut self) -> Vec<String> {
        std::mem::take(&mut self.violations)
    }
}

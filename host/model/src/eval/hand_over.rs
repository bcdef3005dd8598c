//! Pages from a prefill session to a decode session, by the operations that a hand-off in production uses: export into a staging
//! ring, import with tag check and conversion, verdicts as records. Knows no model.

use millrace_ops::{
    Backend, Buffer, ExportPages, ImportPages, Op, PageEntry, PublishVerdicts, RowStatus, StagedPage, StepRecord, as_bytes,
};

use super::session::{Session, refuse, upload};
use crate::ModelError;

/// Pages that are under way at once, as in production.
const STAGING_SLOTS: usize = 64;
/// The export's and the import's.
const VERDICTS: usize = 2;

pub(super) struct HandOver {
    staging: Buffer,
    exports: Buffer,
    imports: Buffer,
    verdicts: Buffer,
    records: Buffer,
    batches: u32,
}

impl HandOver {
    /// # Errors
    /// [`ModelError::Evaluation`] where pages of `from` cannot become pages of `to`.
    pub(super) fn new(from: &Session<'_>, to: &Session<'_>, backend: &dyn Backend) -> Result<Self, ModelError> {
        let (from, to) = (&from.cache().layout, &to.cache().layout);
        if !from.agrees_but_for_format(to) {
            return refuse(&format!(
                "prefill pages are {} and decode pages {}; give both stages checkpoints of the same model",
                from.id(),
                to.id()
            ));
        }
        if !from.format.becomes(to.format) {
            return refuse(&format!(
                "decode KV {} cannot hold what prefill wrote in {}: a hand-off keeps or narrows, f32 -> bf16 -> fp8; give decode \
                 {} or a narrower format",
                to.format, from.format, from.format
            ));
        }
        Ok(Self {
            staging: backend.allocate(STAGING_SLOTS.saturating_mul(from.page_bytes()))?,
            exports: backend.allocate(STAGING_SLOTS * size_of::<StagedPage>())?,
            imports: backend.allocate(STAGING_SLOTS * size_of::<StagedPage>())?,
            verdicts: backend.allocate(VERDICTS * size_of::<u32>())?,
            records: backend.allocate(VERDICTS * size_of::<StepRecord>())?,
            batches: 0,
        })
    }

    /// Copies the first `tokens` tokens of sequence `from.1` into the pages of sequence `to.1`, which was begun.
    pub(super) fn carry(
        &mut self,
        from: (&mut Session<'_>, usize),
        to: (&mut Session<'_>, usize),
        tokens: usize,
    ) -> Result<(), ModelError> {
        let page_tokens = from.0.cache().layout.page_tokens;
        let pages: Vec<(PageEntry, PageEntry)> = from
            .0
            .table(from.1)
            .iter()
            .copied()
            .zip(to.0.table(to.1).iter().copied())
            .take(tokens.div_ceil(page_tokens))
            .collect();
        for (batch, pages) in pages.chunks(STAGING_SLOTS).enumerate() {
            let before = batch * STAGING_SLOTS * page_tokens;
            let staged = |entry: &PageEntry, slot: usize, verdict: u32| StagedPage {
                slot: slot as u32,
                page: entry.page,
                tag: entry.tag,
                tokens: (tokens - before - slot * page_tokens).min(page_tokens) as u32,
                verdict,
                reserved: 0,
            };
            let exports: Vec<StagedPage> = pages.iter().enumerate().map(|(slot, (from, _))| staged(from, slot, 0)).collect();
            let imports: Vec<StagedPage> = pages.iter().enumerate().map(|(slot, (_, to))| staged(to, slot, 1)).collect();
            self.export(from.0, &exports)?;
            self.import(from.0, to.0, &imports)?;
        }
        to.0.adopt(to.1, tokens);
        Ok(())
    }

    fn export(&mut self, from: &mut Session<'_>, pages: &[StagedPage]) -> Result<(), ModelError> {
        let cache = from.cache().clone();
        let queue = from.queue();
        upload(queue, (&self.verdicts, 0), as_bytes(&[0u32; VERDICTS]));
        upload(queue, (&self.exports, 0), as_bytes(pages));
        queue.enqueue(Op::ExportPages(ExportPages {
            cache,
            staging: self.staging.clone(),
            pages: self.exports.clone(),
            verdicts: self.verdicts.clone(),
            count: pages.len(),
        }));
        let ticket = queue.submit();
        Ok(queue.wait(ticket)?)
    }

    fn import(&mut self, from: &Session<'_>, to: &mut Session<'_>, pages: &[StagedPage]) -> Result<(), ModelError> {
        let (cache, layout) = (to.cache().clone(), from.cache().layout.clone());
        self.batches = self.batches.wrapping_add(1);
        let queue = to.queue();
        upload(queue, (&self.imports, 0), as_bytes(pages));
        queue.enqueue(Op::ImportPages(ImportPages {
            cache,
            from: layout,
            staging: self.staging.clone(),
            pages: self.imports.clone(),
            verdicts: self.verdicts.clone(),
            count: pages.len(),
        }));
        queue.enqueue(Op::PublishVerdicts(PublishVerdicts {
            verdicts: self.verdicts.clone(),
            records: self.records.clone(),
            count: VERDICTS,
            step_number: self.batches,
        }));
        let ticket = queue.submit();
        queue.wait(ticket)?;
        let mut records = [StepRecord::default(); VERDICTS];
        queue.read_records(&self.records, &mut records)?;
        if records.iter().any(|record| record.status() != RowStatus::Ok) {
            return refuse("a page lost its tag on the way from prefill to decode; the backend's tag check is wrong");
        }
        Ok(())
    }
}

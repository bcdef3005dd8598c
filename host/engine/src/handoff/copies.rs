//! The operations that copy pages of a prefill pool to the host, in the wire's format, and the buffers that they go through. Knows no
//! transfer and no peer.

use millrace_ops::{
    Backend, BackendError, Buffer, Download, ExportPages, HostPieces, ImportPages, KvCache, KvLayout, Op, PublishVerdicts,
    StagedPage, StepRecord, Upload, as_bytes,
};

use crate::bracket::{number_pages, tag_array};

/// Pages copied out at a time.
pub(super) const SLOTS: usize = 16;

/// Buffers of the copies.
pub(super) struct Copies {
    staging: Buffer,
    exports: Buffer,
    verdicts: Buffer,
    records: Buffer,
    /// Where pages become those of the wire, if it has another format; each page has its own number as tag.
    converted: Option<KvCache>,
    piece_bytes: usize,
}

impl Copies {
    /// From pages of `own` to pages of `wire`.
    pub(super) fn new(own: &KvLayout, wire: &KvLayout, backend: &dyn Backend) -> Result<Self, BackendError> {
        let converted = if own == wire {
            None
        } else {
            let (pages, tags) = (backend.allocate(SLOTS * wire.page_bytes())?, tag_array(backend, SLOTS)?);
            Some(KvCache { pages, tags, layout: wire.clone(), page_count: SLOTS })
        };
        Ok(Self {
            staging: backend.allocate(SLOTS * own.page_bytes())?,
            exports: backend.allocate(2 * SLOTS * size_of::<StagedPage>())?,
            verdicts: backend.allocate(SLOTS * size_of::<u32>())?,
            records: backend.allocate(SLOTS * size_of::<StepRecord>())?,
            converted,
            piece_bytes: wire.page_bytes(),
        })
    }

    /// Where the verdicts are published.
    pub(super) fn records(&self) -> &Buffer {
        &self.records
    }

    /// Everything that copies pages to the host.
    pub(super) fn operations(
        &self,
        cache: KvCache,
        (exports, imports): (&[StagedPage], &[StagedPage]),
        pieces: &HostPieces,
        step_number: u32,
    ) -> Vec<Op> {
        let upload = |to: &Buffer, offset: usize, bytes: Vec<u8>| Op::Upload(Upload { to: to.clone(), offset, bytes });
        let (staging, verdicts, count) = (self.staging.clone(), self.verdicts.clone(), exports.len());
        let own = cache.layout.clone();
        let mut ops = vec![
            upload(&self.verdicts, 0, as_bytes(&[0u32; SLOTS])),
            upload(&self.exports, 0, as_bytes(exports)),
            Op::ExportPages(ExportPages { cache, staging: staging.clone(), pages: self.exports.clone(), verdicts, count }),
        ];
        let mut from = staging;
        if let Some(converted) = &self.converted {
            ops.extend(number_pages(&converted.tags, SLOTS));
            ops.push(upload(&self.exports, 0, as_bytes(imports)));
            ops.push(Op::ImportPages(ImportPages {
                cache: converted.clone(),
                from: own,
                staging: from,
                pages: self.exports.clone(),
                verdicts: self.verdicts.clone(),
                count,
            }));
            from = converted.pages.clone();
        }
        ops.push(Op::Download(Download { from, piece_bytes: self.piece_bytes, to: pieces.clone() }));
        let (verdicts, records) = (self.verdicts.clone(), self.records.clone());
        ops.push(Op::PublishVerdicts(PublishVerdicts { verdicts, records, count, step_number }));
        ops
    }
}

//! Every operation a step is made of, as plain data. An [`Op`] names buffers and sizes and says what is to be computed;
//! how is the backend's. All activations are f32, row-major.
//!
//! Inputs that change from step to step sit in fixed device buffers ([`StepBuffers`]), so that a step's list of operations
//! depends only on its shape and can be captured as a graph.

mod attention;
mod experts;
mod pages;
mod rows;
mod sampling;
mod step;

pub use attention::{Attend, AttendLatent, SelectTokens, Selection};
pub use experts::{CombineRows, DispatchRows, ExpertBuffers, LinearExperts, RouteRows, RouteRule, RouteScoring};
pub use pages::{
    ApplyTags, CheckPoint, CheckTags, Download, ExportPages, HostPieces, ImportPages, PlaneColumns, PublishVerdicts, Upload,
    WriteKv,
};
pub use rows::{Embed, Linear, LinearHeads, LinearMode, NormHeads, NormKind, RmsNorm, Rope, RopePairs, SiluMul};
pub use sampling::{GatherRows, Sample};
pub use step::{KvCache, PageEntry, SamplerParams, Segment, StagedPage, StepBuffers, TagDelta, as_bytes};

/// Everything a queue can be given.
#[derive(Debug, Clone)]
pub enum Op {
    Upload(Upload),
    Download(Download),
    ApplyTags(ApplyTags),
    CheckTags(CheckTags),
    Embed(Embed),
    RmsNorm(RmsNorm),
    Linear(Linear),
    Rope(Rope),
    WriteKv(WriteKv),
    Attend(Attend),
    SiluMul(SiluMul),
    NormHeads(NormHeads),
    LinearHeads(LinearHeads),
    AttendLatent(AttendLatent),
    SelectTokens(SelectTokens),
    RouteRows(RouteRows),
    DispatchRows(DispatchRows),
    LinearExperts(LinearExperts),
    CombineRows(CombineRows),
    GatherRows(GatherRows),
    Sample(Sample),
    ExportPages(ExportPages),
    ImportPages(ImportPages),
    PublishVerdicts(PublishVerdicts),
}

impl Op {
    /// For messages and profiles.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Upload(_) => "upload",
            Self::Download(_) => "download",
            Self::ApplyTags(_) => "apply_tags",
            Self::CheckTags(_) => "check_tags",
            Self::Embed(_) => "embed",
            Self::RmsNorm(_) => "rms_norm",
            Self::Linear(_) => "linear",
            Self::Rope(_) => "rope",
            Self::WriteKv(_) => "write_kv",
            Self::Attend(_) => "attend",
            Self::SiluMul(_) => "silu_mul",
            Self::NormHeads(_) => "norm_heads",
            Self::LinearHeads(_) => "linear_heads",
            Self::AttendLatent(_) => "attend_latent",
            Self::SelectTokens(_) => "select_tokens",
            Self::RouteRows(_) => "route_rows",
            Self::DispatchRows(_) => "dispatch_rows",
            Self::LinearExperts(_) => "linear_experts",
            Self::CombineRows(_) => "combine_rows",
            Self::GatherRows(_) => "gather_rows",
            Self::Sample(_) => "sample",
            Self::ExportPages(_) => "export_pages",
            Self::ImportPages(_) => "import_pages",
            Self::PublishVerdicts(_) => "publish_verdicts",
        }
    }
}

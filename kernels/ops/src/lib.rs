//! The seam between the host and every device: numeric formats, KV page layout, operations as plain data, and the
//! [`Backend`] and [`Queue`] traits that run them.
//!
//! It does not know any device, model, request or policy. A backend is given operations and returns nothing but
//! step records; see `ARCHITECTURE.md` for who calls it.

mod backend;
mod error;
mod format;
mod fp8;
mod kv;
mod op;
mod record;
mod recording;
mod scales;
mod tensor;
mod timing;

pub use backend::{
    Backend, Buffer, DeviceDescription, DeviceMemory, Priority, Program, Queue, Ticket, Wake, Weight, WeightMemory,
};
pub use error::BackendError;
pub use format::{Activations, KvFormat, TensorFormat, WeightFormat};
pub use fp8::{E4M3_MAX, e4m3_from_f32, e4m3_to_f32};
pub use kv::{KvLayout, PlaneKind, PlaneLayout, PlaneShape, StaticScales};
pub use op::{
    ApplyTags, Attend, AttendLatent, CheckPoint, CheckTags, CombineRows, DispatchRows, Download, Embed, ExpertBuffers,
    ExportPages, GatherRows, HostPieces, ImportPages, KvCache, Linear, LinearExperts, LinearHeads, LinearMode, NormHeads,
    NormKind, Op, PageEntry, PlaneColumns, PublishVerdicts, RmsNorm, Rope, RopePairs, RouteRows, RouteRule, RouteScoring, Sample,
    SamplerParams, Segment, SelectTokens, Selection, SiluMul, StagedPage, StepBuffers, TagDelta, Upload, WriteKv, as_bytes,
};
pub use record::{RowStatus, StepRecord};
pub use recording::RecordingList;
pub use scales::ScaleData;
pub use tensor::{RowOrder, TensorData, TensorView};
pub use timing::{OperationKind, OperationTime};

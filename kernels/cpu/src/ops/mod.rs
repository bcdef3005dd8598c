//! The operations of the CPU backend, one file each. An operation checks its arguments against its buffers when it is
//! enqueued and its step inputs (tokens, tables, samplers), which only exist on the device, when it runs.
//! Knows neither queues nor threads.

mod apply_tags;
mod attend;
mod download;
mod embed;
mod experts;
mod fused;
mod gather;
mod kv_write;
mod latent;
mod linear;
mod linear_heads;
mod norm;
mod norm_heads;
mod pages;
mod rope;
mod sample;
mod select;
mod selection;
mod silu;
mod step;
#[cfg_attr(not(feature = "tags"), path = "no_tags.rs")]
mod tags;
mod tokens;
mod upload;
mod verdicts;
mod weights;

use millrace_ops::{BackendError, Op};

pub(crate) use fused::{fuse, makes_rows};

use crate::pool::Compute;
use crate::task::{Arguments, Task};

/// Checks `op` and makes it ready to run.
///
/// # Errors
/// [`BackendError::Invalid`] where an argument does not fit its buffer or a handle is another backend's.
pub(crate) fn lower(op: Op, compute: Compute) -> Result<Box<dyn Task>, BackendError> {
    let arguments = Arguments { operation: op.name() };
    Ok(match op {
        Op::Upload(op) => Box::new(upload::UploadTask::new(arguments, op)?),
        Op::Download(op) => Box::new(download::DownloadTask::new(arguments, op)?),
        Op::ApplyTags(op) => Box::new(apply_tags::ApplyTagsTask::new(arguments, op)?),
        Op::CheckTags(op) => tags::check(arguments, op)?,
        Op::Embed(op) => Box::new(embed::EmbedTask::new(arguments, op)?),
        Op::RmsNorm(op) => Box::new(norm::RmsNormTask::new(arguments, op)?),
        Op::Linear(op) => linear::lower(arguments, op, compute)?,
        Op::Rope(op) => Box::new(rope::RopeTask::new(arguments, op)?),
        Op::WriteKv(op) => Box::new(kv_write::WriteKvTask::new(arguments, op)?),
        Op::Attend(op) => attend::lower(arguments, op, compute)?,
        Op::SiluMul(op) => Box::new(silu::SiluMulTask::new(arguments, op)?),
        Op::NormHeads(op) => Box::new(norm_heads::NormHeadsTask::new(arguments, op)?),
        Op::LinearHeads(op) => Box::new(linear_heads::LinearHeadsTask::new(arguments, op, compute)?),
        Op::RouteRows(op) => Box::new(experts::RouteRowsTask::new(arguments, op)?),
        Op::DispatchRows(op) => Box::new(experts::DispatchRowsTask::new(arguments, op)?),
        Op::LinearExperts(op) => Box::new(experts::LinearExpertsTask::new(arguments, op, compute)?),
        Op::CombineRows(op) => Box::new(experts::CombineRowsTask::new(arguments, op)?),
        Op::AttendLatent(op) => latent::lower(arguments, op, compute)?,
        Op::SelectTokens(op) => select::lower(arguments, op, compute)?,
        Op::GatherRows(op) => Box::new(gather::GatherRowsTask::new(arguments, op)?),
        Op::Sample(op) => Box::new(sample::SampleTask::new(arguments, op)?),
        Op::ExportPages(op) => Box::new(pages::ExportTask::new(arguments, op)?),
        Op::ImportPages(op) => Box::new(pages::ImportTask::new(arguments, op)?),
        Op::PublishVerdicts(op) => Box::new(verdicts::PublishVerdictsTask::new(arguments, op)?),
    })
}

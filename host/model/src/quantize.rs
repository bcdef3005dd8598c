//! Quantizes hub checkpoints: reads BF16, F16, F32 or FP8 tensor by tensor and writes FP8 or INT4 in the layouts that other
//! programs read, with a report of what was lost. Knows no device, model or request.
//!
//! ```text
//! Source (names, shapes) -> Plan (what becomes of each) -> Layout (shards, places) -> workers -> report
//!                            rule, options, keep                                      read, search, write
//! ```
//!
//! Formats: FP8 (e4m3 codes, an f32 scale for each 128x128 block), in the hub's layout (`weight_scale_inv`) or, where other
//! programs do not load that, in the one of compressed-tensors (`elsewhere` has the rules); and compressed-tensors `pack-quantized`
//! INT4 (symmetric, a BF16 scale for each group of columns). Both round to nearest with the scale of a small grid that loses least.
//! Memory: each worker holds 128 rows of one matrix, about seven bytes an element; the files are read and written in pieces,
//! never mapped whole. The same source and options give the same bytes with any number of workers.

mod configuration;
mod destination;
mod elsewhere;
mod error;
mod fp8;
mod int4;
mod layout;
mod names;
mod places;
mod plan;
mod report;
mod rule;
mod select;
mod source;
mod values;
mod work;
mod worker;

use std::path::{Path, PathBuf};

use serde_json::Value;

pub use elsewhere::Elsewhere;
pub use error::QuantizeError;
pub use report::{Detail, KeptTensors, Loss, QuantizeReport, Sums};
pub use work::Progress;

use configuration::Description;
use destination::{Destination, small_files};
use layout::{INDEX, Layout};
use places::ReportFile;
use plan::Plan;
use source::Source;
use work::{Job, Workers, run};

const GROUPS: [usize; 3] = [32, 64, 128];
const MAX_THREADS: usize = 1024;

/// What projections are written in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QuantizedFormat {
    /// e4m3 codes with an f32 scale for each 128x128 block.
    Fp8Block,
    /// 4-bit codes with a BF16 scale for each `group` columns: 32, 64 or 128.
    Int4Group { group: usize },
}

/// A choice of projections as published checkpoints of a model make it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Preset {
    /// Routed experts only, as Kimi K2's own INT4.
    Kimi,
    /// FP8: every projection, as GLM-5.2-FP8. INT4: routed experts only, the rest as stored.
    Glm,
}

/// How to quantize.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuantizeOptions {
    pub format: QuantizedFormat,
    pub preset: Option<Preset>,
    /// Regular expressions, searched in the names of tensors; those that match keep their format.
    pub keep: Vec<String>,
    /// Data of one file at most, but for a tensor that is larger by itself.
    pub shard_bytes: u64,
    pub threads: usize,
    /// Where the report goes as JSON, with every tensor.
    pub report: Option<PathBuf>,
}

/// Which projections may be quantized.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scope {
    Projections,
    RoutedExperts,
}

impl QuantizeOptions {
    fn scope(&self) -> Scope {
        match (self.preset, self.format) {
            (Some(Preset::Kimi), _) | (Some(Preset::Glm), QuantizedFormat::Int4Group { .. }) => Scope::RoutedExperts,
            (Some(Preset::Glm), QuantizedFormat::Fp8Block) | (None, _) => Scope::Projections,
        }
    }

    fn check(&self) -> Result<(), QuantizeError> {
        let wrong = |option, found: &dyn ToString, allowed: &str| {
            Err(QuantizeError::Option { option, found: found.to_string(), allowed: allowed.to_owned() })
        };
        if let QuantizedFormat::Int4Group { group } = self.format
            && !GROUPS.contains(&group)
        {
            return wrong("group", &group, "is no group of INT4; use 32, 64 or 128");
        }
        if !(1..=MAX_THREADS).contains(&self.threads) {
            return wrong("threads", &self.threads, "is outside of 1 to 1024");
        }
        if self.shard_bytes == 0 {
            return wrong("shard size", &0, "leaves no room for a tensor; use at least 1");
        }
        Ok(())
    }
}

/// Quantizes the hub directory `source` into the new directory `destination`. `progress` is called after every piece.
///
/// # Errors
/// [`QuantizeError`]; there is then no directory `destination`, unless the error is [`QuantizeError::ReportLost`].
pub fn quantize(
    source: &Path,
    destination: &Path,
    options: &QuantizeOptions,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<QuantizeReport, QuantizeError> {
    options.check()?;
    places::check(source, destination, options.report.as_deref())?;
    let report_file = options.report.as_deref().map(ReportFile::open).transpose()?;
    let source = Source::open(source)?;
    let plan = Plan::new(&source, options)?;
    let layout = Layout::new(&plan, options.shard_bytes)?;
    let (small, large) = small_files(&source.directory)?;
    let description = Description::new(&plan, options.format);
    let index = layout.index(&plan);

    let weights: u64 = layout.shards.iter().map(|shard| shard.bytes).sum();
    let others: u64 = small.iter().filter_map(|path| path.metadata().ok()).map(|metadata| metadata.len()).sum();
    let needed = weights.saturating_add(others).saturating_add(index.as_ref().map_or(0, String::len) as u64);
    let unfinished = Destination::create(destination, needed)?;
    let paths = unfinished.create_shards(&layout.shards)?;
    let job = Job { source: &source, plan: &plan, layout: &layout, paths: &paths };
    let losses = run(&job, Workers::new(options.threads), progress)?;
    if let Some(index) = index {
        unfinished.write(INDEX, &index)?;
    }
    unfinished.copy(&small)?;
    unfinished.write("config.json", &format!("{:#}\n", Value::Object(description.rewritten(&source.config))))?;
    unfinished.finish()?;

    let mut report = QuantizeReport::new(&source, &plan, &losses);
    report.bytes_after = weights;
    report.files = layout.shards.len();
    report.stored_as = description.stored_as;
    report.loads_elsewhere = description.elsewhere;
    report.notes.extend(large.iter().map(|path| format!("{} is larger than 64 MiB and was not copied", path.display())));
    if let Some(file) = report_file {
        file.write(&format!("{:#}\n", report.to_json(Detail::Tensors)), destination)?;
    }
    Ok(report)
}

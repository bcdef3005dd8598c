//! From the command line to lanes that can be run: devices, checkpoints and models, each loaded once, and the windows that the
//! text is cut into. Knows no statistics.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;
use clap::builder::RangedU64ValueParser;
use millrace_core::{KvFormat, Precision, StagePrecision};
use millrace_cpu::{CpuBackend, CpuCompute, CpuOptions};
use millrace_model::eval::{EvalLane, EvalStage, Protocol};
use millrace_model::{Architecture, Checkpoint, TokenizerAgreement, WeightCache, check_agreement};
use millrace_ops::Backend;

use super::precision::{describe, parse_compute, parse_device};
use super::text::Text;
use crate::UsageError;
use crate::bench::threads;

/// A window is no longer than this unless it is asked for: logits are compared, not long contexts.
const USUAL_WINDOW: usize = 4096;

/// How a text is run; the same for every lane.
#[derive(Args)]
pub(super) struct RunArgs {
    /// reference: f32 from the recipe's exact values; fast: the device's kernels; precise: the same without rounding activations to 8 bits.
    #[arg(long, default_value = "reference", value_parser = parse_compute)]
    pub(super) compute: CpuCompute,
    /// cpu.
    #[arg(long, default_value = "cpu", value_parser = parse_device)]
    device: String,
    /// Tokens of a window; each window is a sequence of its own. Where not given: the whole text, as far as the context and 4096
    /// tokens go.
    #[arg(long, value_parser = RangedU64ValueParser::<usize>::new().range(2..))]
    window: Option<usize>,
    /// Tokens of a window that go through prefill; the rest is decoded token by token. Where not given: half where prefill and
    /// decode are told apart, else all.
    #[arg(long, value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    prefill_tokens: Option<usize>,
    /// Tokens from one window's beginning to the next one's; smaller than the window: a token is scored only where it is new.
    /// Where not given: the window.
    #[arg(long, value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    stride: Option<usize>,
    /// Windows in decode at once.
    #[arg(long, default_value_t = 16, value_parser = RangedU64ValueParser::<usize>::new().range(1..=1024))]
    batch: usize,
    /// Tokens per prefill step.
    #[arg(long, default_value_t = 128, value_parser = RangedU64ValueParser::<usize>::new().range(1..=65_536))]
    chunk: usize,
    /// Worker threads; 0: all that this process may use.
    #[arg(short, long, default_value_t = 0, value_parser = threads())]
    threads: usize,
    /// One JSON object on stdout instead of text.
    #[arg(long)]
    pub(super) json: bool,
}

impl RunArgs {
    /// Whether the command line itself tells prefill and decode apart.
    pub(super) fn splits(&self) -> bool {
        self.prefill_tokens.is_some()
    }

    /// Windows for a text over models with a context of `context` tokens.
    pub(super) fn protocol(&self, text: &Text, context: usize, staged: bool) -> Result<Protocol> {
        // A window's lead has its place in the context too.
        let room = context - usize::from(text.lead.is_some()).min(context);
        let window = self.window.unwrap_or(room.min(USUAL_WINDOW)).min(text.ids.len());
        if window > room {
            let message = format!("--window {window}: the model's context has room for {room} tokens of a window");
            return Err(UsageError(message).into());
        }
        let half = if staged { window.div_ceil(2) } else { window };
        let prefill = self.prefill_tokens.unwrap_or(half).min(window);
        // A text that is shorter than the usual window has one window, whatever the stride.
        if let (Some(stride), Some(window)) = (self.stride, self.window)
            && stride > window
        {
            let message =
                format!("--stride {stride}: tokens between two windows of {window} would not be scored; use at most {window}");
            return Err(UsageError(message).into());
        }
        let stride = self.stride.unwrap_or(window).min(window);
        Ok(Protocol { window, prefill, stride, batch: self.batch, lead: text.lead, page_tokens: 32, chunk: self.chunk })
    }
}

/// # Errors
/// Usage where decode could not take over what prefill writes.
fn check_formats(prefill: KvFormat, decode: KvFormat) -> Result<()> {
    if prefill.becomes(decode) {
        return Ok(());
    }
    let message = format!(
        "decode KV {decode} cannot hold what prefill wrote in {prefill}: a hand-off keeps or narrows, f32 -> bf16 -> fp8; give \
         decode {prefill} or a narrower format"
    );
    Err(UsageError(message).into())
}

/// Which checkpoint and precision a lane's stages are made from.
pub(super) struct LaneWish<'a> {
    pub(super) compute: CpuCompute,
    pub(super) prefill: (&'a Path, StagePrecision),
    pub(super) decode: (&'a Path, StagePrecision),
}

/// A lane with everything that it runs on.
pub(super) struct LoadedLane {
    backend: Arc<CpuBackend>,
    prefill: Box<dyn Architecture>,
    decode: Box<dyn Architecture>,
    precision: Precision,
    compute: CpuCompute,
    /// Of the prefill and the decode checkpoint.
    digests: [String; 2],
}

impl LoadedLane {
    pub(super) fn lane(&self) -> EvalLane<'_> {
        EvalLane {
            backend: self.backend.as_ref(),
            prefill: EvalStage { model: self.prefill.as_ref(), kv: self.precision.prefill.kv },
            decode: EvalStage { model: self.decode.as_ref(), kv: self.precision.decode.kv },
        }
    }

    /// Tokens that fit both stages' context.
    pub(super) fn context(&self) -> usize {
        self.prefill.max_tokens().min(self.decode.max_tokens())
    }

    /// `fast:int8+kv-bf16/int4+kv-fp8`
    pub(super) fn name(&self) -> String {
        describe(self.compute, &self.precision)
    }

    pub(super) fn json(&self) -> serde_json::Value {
        let [prefill, decode] = &self.digests;
        serde_json::json!({"precision": self.name(), "prefill_weights_digest": prefill, "decode_weights_digest": decode})
    }

    /// For one line of a report.
    pub(super) fn device(&self) -> String {
        let device = self.backend.describe();
        format!("{} ({}, {} threads)", device.name, device.architecture, device.threads)
    }
}

/// Weights by where their checkpoint is: digests look at a part of the bytes, and what is compared may differ elsewhere.
type Weights = BTreeMap<PathBuf, WeightCache>;

/// Loads lanes; whatever two of them share is loaded once.
pub(super) struct Loader {
    threads: usize,
    checkpoints: Vec<(PathBuf, Arc<Checkpoint>)>,
    devices: Vec<(CpuCompute, Arc<CpuBackend>, Weights)>,
}

impl Loader {
    pub(super) fn new(args: &RunArgs) -> Self {
        let threads = if args.threads == 0 { millrace_cpu::available_threads() } else { args.threads };
        Self { threads, checkpoints: Vec::new(), devices: Vec::new() }
    }

    /// Opens a checkpoint. All that are opened must be one model; a tokenizer that differs is told on stderr once there is a text.
    pub(super) fn open(&mut self, path: &Path) -> Result<Arc<Checkpoint>> {
        if let Some((_, checkpoint)) = self.checkpoints.iter().find(|(known, _)| known == path) {
            return Ok(checkpoint.clone());
        }
        let checkpoint = Arc::new(Checkpoint::open(path)?);
        eprintln!("{}: {}", path.display(), checkpoint.summary());
        self.checkpoints.push((path.to_owned(), checkpoint.clone()));
        Ok(checkpoint)
    }

    /// Checks that every opened checkpoint is the model that the first is, and says where tokenizers differ.
    pub(super) fn check_agreement(&self, text: &Text) -> Result<()> {
        let Some(((_, first), others)) = self.checkpoints.split_first() else { return Ok(()) };
        for (path, other) in others {
            let agreement = check_agreement(first, other)?;
            let difference = match agreement {
                TokenizerAgreement::Same | TokenizerAgreement::OneMissing => None,
                TokenizerAgreement::OtherKind | TokenizerAgreement::Different => text.other_tokenizer(other)?,
            };
            match difference {
                Some(what) => eprintln!(
                    "warning: {}: its tokenizer differs from that of {}: {what}; ids are those of the latter",
                    path.display(),
                    first.path().display()
                ),
                None if agreement == TokenizerAgreement::Different => {
                    eprintln!("note: the tokenizer files of {} and {} differ", first.path().display(), path.display());
                }
                None => {}
            }
        }
        Ok(())
    }

    pub(super) fn lane(&mut self, wish: &LaneWish<'_>) -> Result<LoadedLane> {
        let (prefill_path, prefill_precision) = wish.prefill;
        let (decode_path, decode_precision) = wish.decode;
        check_formats(prefill_precision.kv, decode_precision.kv)?;
        let checkpoints = [self.open(prefill_path)?, self.open(decode_path)?];
        let (backend, weights) = self.device(wish.compute)?;
        let mut load = |checkpoint: &Checkpoint, precision: StagePrecision| {
            let cache = weights.entry(checkpoint.path().to_owned()).or_default();
            millrace_model::load(checkpoint, backend.as_ref(), precision.recipe, cache)
                .with_context(|| format!("{}: weights {}", checkpoint.path().display(), precision.recipe))
        };
        let [prefill, decode] = &checkpoints;
        Ok(LoadedLane {
            prefill: load(prefill, prefill_precision)?,
            decode: load(decode, decode_precision)?,
            backend: backend.clone(),
            precision: Precision { prefill: prefill_precision, decode: decode_precision },
            compute: wish.compute,
            digests: checkpoints.map(|checkpoint| checkpoint.digest().to_owned()),
        })
    }

    fn device(&mut self, compute: CpuCompute) -> Result<(Arc<CpuBackend>, &mut Weights)> {
        if !self.devices.iter().any(|(known, ..)| *known == compute) {
            let backend = CpuBackend::new(CpuOptions { threads: self.threads, compute, isa: None })?;
            self.devices.push((compute, Arc::new(backend), Weights::new()));
        }
        match self.devices.iter_mut().find(|(known, ..)| *known == compute) {
            Some((_, backend, weights)) => Ok((backend.clone(), weights)),
            None => bail!("no device computes so"),
        }
    }
}

/// Tokens done, on a terminal, and how long they took.
pub(super) struct Progress {
    total: usize,
    began: Instant,
    shown: Instant,
    terminal: bool,
}

impl Progress {
    pub(super) fn new(total: usize) -> Self {
        let now = Instant::now();
        Self { total, began: now, shown: now, terminal: std::io::stderr().is_terminal() }
    }

    pub(super) fn show(&mut self, done: usize) {
        if self.terminal && self.shown.elapsed() >= Duration::from_millis(500) {
            self.shown = Instant::now();
            eprint!("\r{done} of {} tokens", self.total);
        }
    }

    /// Seconds since the beginning.
    pub(super) fn finish(&self) -> f64 {
        if self.terminal {
            eprint!("\r\x1b[K");
        }
        self.began.elapsed().as_secs_f64()
    }
}

/// One line that says how a text was run.
pub(super) fn describe_protocol(protocol: &Protocol, tokens: usize) -> String {
    let Protocol { window, prefill, stride, .. } = protocol;
    format!("{tokens} tokens in windows of {window}, {prefill} of them through prefill, one window every {stride}")
}

pub(super) fn protocol_json(protocol: &Protocol, tokens: usize) -> serde_json::Value {
    let Protocol { window, prefill, stride, batch, .. } = protocol;
    serde_json::json!({
        "text_tokens": tokens, "window_tokens": window, "prefill_tokens": prefill, "stride_tokens": stride, "batch": batch,
    })
}

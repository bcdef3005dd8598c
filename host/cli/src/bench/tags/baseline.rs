//! The build without page tags, as a child that runs one test after another when it is told to. Knows what a worker says, not what it
//! does.
//!
//! ```text
//!   worker: {"page_tags": false, "protocol": 1}      at once
//!   worker: {"ready": "what it loaded"}
//!   asked:  BATCH CONTEXT OUTPUT                      any number of times
//!   worker: {"tokens_per_second": 1.0, "itl_p95_us": 2.0}
//! ```
//! The worker ends when its standard input does. What goes wrong there it says on standard error, which is this process's.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context as _, Result, anyhow, ensure};
use serde_json::Value;

use super::TagsArgs;
use crate::Failure;
use crate::bench::lane::Streams;

pub(super) const PROTOCOL: u64 = 1;
/// Longer lines are no worker's.
const MAX_LINE_BYTES: u64 = 4096;

pub(super) struct Baseline {
    name: String,
    child: Child,
    asks: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Baseline {
    /// # Errors
    /// Usage where `path` is no millrace without page tags; the child's own otherwise.
    pub(super) fn start(path: &Path, args: &TagsArgs) -> Result<Self, Failure> {
        let name = path.display().to_string();
        let numbers = |numbers: &[usize]| numbers.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
        let (weights, kv) = (&args.stages.weights, args.stages.kv);
        let mut child = Command::new(path)
            .args(["bench", "tags", "--worker", "-m"])
            .arg(&weights.model)
            .args(["-b", &numbers(&args.batch), "-d", &numbers(&args.context), "-n", &args.output.to_string()])
            .args(["-t", &weights.threads.to_string(), "--kv", &kv.to_string()])
            .args(["--prefill-weights", &weights.prefill_weights.to_string()])
            .args(["--decode-weights", &weights.decode_weights.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| Failure::Usage(format!("--baseline {name}: cannot be started: {error}")))?;
        let (Some(asks), Some(answers)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(anyhow!("--baseline {name}: has no standard input or output").into());
        };
        let mut baseline = Self { name, child, asks, answers: BufReader::new(answers) };
        let hello = baseline.answer().unwrap_or_default();
        let told = (hello["page_tags"].as_bool(), hello["protocol"].as_u64());
        let why = match told {
            (Some(false), Some(PROTOCOL)) => None,
            (Some(true), Some(PROTOCOL)) => Some("has page tags"),
            _ => Some("is no millrace of this version"),
        };
        if let Some(why) = why {
            return Err(Failure::Usage(format!(
                "--baseline {}: {why}; name a binary that was built from the same source without page tags (cargo build --release \
                 --workspace --no-default-features)",
                baseline.name
            )));
        }
        let ready = baseline.answer()?;
        if !ready["ready"].is_string() {
            return Err(anyhow!("--baseline {}: was to be ready and said `{ready}`", baseline.name).into());
        }
        Ok(baseline)
    }

    /// Tokens per second and the p95 of inter-token latency in microseconds of one test.
    ///
    /// # Errors
    /// The child ended, or said something else.
    pub(super) fn run(&mut self, streams: Streams) -> Result<(f64, f64)> {
        let Streams { batch, depth, output } = streams;
        let asked = writeln!(self.asks, "{batch} {depth} {output}").and_then(|()| self.asks.flush());
        asked.with_context(|| format!("--baseline {}: has ended", self.name))?;
        let answer = self.answer()?;
        let (rate, itl) = (answer["tokens_per_second"].as_f64(), answer["itl_p95_us"].as_f64());
        rate.zip(itl).ok_or_else(|| anyhow!("--baseline {}: gave no figures but `{answer}`", self.name))
    }

    fn answer(&mut self) -> Result<Value> {
        let mut line = String::new();
        let read = (&mut self.answers).take(MAX_LINE_BYTES).read_line(&mut line);
        let read = read.with_context(|| format!("--baseline {}: cannot be read", self.name))?;
        ensure!(read > 0, "--baseline {}: ended before its answer; its own message says why", self.name);
        serde_json::from_str(&line).with_context(|| format!("--baseline {}: said `{}`", self.name, line.trim_end()))
    }
}

impl Drop for Baseline {
    fn drop(&mut self) {
        // It may have ended already; then there is nothing to end.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

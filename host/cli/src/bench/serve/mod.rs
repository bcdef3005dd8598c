//! `millrace bench serve`: what any OpenAI-compatible server gives its clients, measured from outside over HTTP.
//!
//! Closed loop: each of C clients keeps one connection (unless `--fresh-connections`) and sends its next request when its last one
//! is done. Requests are streamed chat completions at temperature 0 whose prompts differ from the first word on, so that no prefix
//! cache helps; their length is fitted to the server's own count beforehand. Each level is warmed up and repeated; figures are medians over the repeats.
//!
//! `--json` prints one object. S stands for {"median", "min", "max"} over the repeats, L for {"p50": S, "p95": S, "p99": S}; what
//! could not be measured is null.
//!
//! ```text
//! results: one for each level
//!   concurrency, requests, requests_per_repeat     requests: of all repeats, failed ones included
//!   failures, warm_up_failures                     {"total", "kinds": [{"kind", "count", "example"}]}
//!   requests_per_second: S                         that ended well
//!   output_tokens_per_second: S                    of requests that ended well, over the whole repeat, prefill included
//!   output_tokens, output_tokens_from              in all; counted by "usage", by "chunks" with text, or "mixed"
//!   short_answers, whole_answers                   fewer tokens than --max-tokens; not streamed
//!   prompt_tokens, cached_tokens                   median of a prompt; sum over all prompts that the server had cached
//!   ttft_ms: L                                     from sending (connecting included) to the first chunk with text
//!   itl_ms: L                                      gaps between chunks with text, of all requests together
//!   tpot_ms: L                                     of each request: first to last chunk with text / (output tokens - 1)
//!   e2e_ms: L                                      from sending to [DONE]
//!   goodput                                        {"ttft_ms", "itl_ms", "requests_per_second": S, "share": S} with --ttft-ms or --itl-ms
//!   wall_seconds: S, client_cpu_seconds: S         of a repeat; user and system time of this process
//! url, model, max_tokens, prompt_words, calibrated, seed, repeats, method
//! ```
//! Percentiles are by nearest rank. A request is good whose TTFT and whose gaps' 95th percentile keep to the goals.
//!
//! Kinds of failure: connect, timeout, status_NNN, cut, http, malformed, error_event, unfinished, empty, too_large (`failure`). A
//! failure ends no level; the exit code is 1 in the end. It knows nothing of Millrace's own server.

mod answer;
mod args;
mod calibration;
mod chunk;
mod client;
mod endpoint;
mod failure;
mod figures;
mod load;
mod prompts;
mod report;
mod sse;

use std::io::{IsTerminal as _, Write as _};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use anyhow::{Context as _, anyhow, ensure};
use serde_json::json;

pub(crate) use args::LoadArgs;

use self::args::Settings;
use self::client::Client;
use self::endpoint::Endpoint;
use self::load::{PromptSize, Workload};
use self::prompts::Prompts;
use self::report::Level;
use crate::Failure;
use crate::output::say;

/// Beside connections: standard streams and what the runtime needs.
const OTHER_FILES: u64 = 64;

pub(crate) fn run(args: &LoadArgs) -> Result<(), Failure> {
    let settings = args.settings().map_err(Failure::Usage)?;
    // One thread does: a client that needed more would take the cores that it measures.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start the client")?;
    let failed = runtime.block_on(measure(&settings))?;
    runtime.shutdown_background();
    if failed > 0 {
        return Err(Failure::Failed(anyhow!("{failed} requests failed; the results name each kind with an example")));
    }
    Ok(())
}

/// Measures and prints all levels; the number of requests that failed.
async fn measure(settings: &Settings) -> anyhow::Result<u64> {
    raise_file_limit(settings)?;
    let kept = Endpoint::resolve(&settings.url, settings.key.clone(), settings.timeout).await?;
    let endpoint = if settings.fresh_connections { kept.with_fresh_connections() } else { kept };
    let workload = Arc::new(Workload {
        endpoint: Arc::new(endpoint),
        model: settings.model.clone(),
        prompts: Prompts::new(settings.seed),
        max_tokens: settings.max_tokens,
        next: AtomicU32::new(0),
    });
    let size = workload.calibrate(settings.prompt_tokens).await?;
    if !settings.json {
        say!("{}", heading(settings, size));
    }
    let mut levels = Vec::new();
    for &(concurrency, requests) in &settings.levels {
        let mut level = Level::new(concurrency, requests, settings.max_tokens, settings.goals);
        let mut clients: Vec<Client> = (0..concurrency).map(|_| Client::new(workload.endpoint.clone())).collect();
        let warm_up = settings.warm_up.unwrap_or(concurrency as u32);
        let progress = Progress::of(concurrency);
        progress.show("warm-up");
        level.warm_up_failures = workload.round(&mut clients, warm_up, size.words).await.failures;
        for repeat in 1..=settings.repeats {
            progress.show(&format!("repeat {repeat} of {}", settings.repeats));
            level.add(workload.round(&mut clients, requests, size.words).await);
        }
        progress.clear();
        if !settings.json {
            say!("{}", level.text());
        }
        levels.push(level);
    }
    if settings.json {
        print_json(settings, size, &levels);
    }
    Ok(levels.iter().map(Level::failed).sum())
}

/// # Errors
/// The process may not have a connection for each client.
fn raise_file_limit(settings: &Settings) -> anyhow::Result<()> {
    let clients = settings.levels.iter().map(|&(concurrency, _)| concurrency as u64).max().unwrap_or(0);
    let needed = clients + OTHER_FILES;
    // Where the limit cannot be known it is not in the way.
    let limit = rlimit::increase_nofile_limit(needed).unwrap_or(needed);
    ensure!(
        limit >= needed,
        "--concurrency {clients}: this process may have {limit} files open, {needed} are needed; raise the hard limit (ulimit -Hn) \
         or take fewer clients"
    );
    Ok(())
}

/// One line on a terminal that says where a level is; nothing where stderr is no terminal.
struct Progress {
    concurrency: usize,
    is_seen: bool,
}

impl Progress {
    fn of(concurrency: usize) -> Self {
        Self { concurrency, is_seen: std::io::stderr().is_terminal() }
    }

    fn show(&self, step: &str) {
        if self.is_seen {
            // Whoever cannot be told how far it is can still be told how it ended.
            let _ = write!(std::io::stderr(), "\r{:<60}", format!("{} clients: {step}", self.concurrency));
        }
    }

    fn clear(&self) {
        if self.is_seen {
            let _ = write!(std::io::stderr(), "\r{:<60}\r", "");
        }
    }
}

fn heading(settings: &Settings, size: PromptSize) -> String {
    let words = size.words;
    let fitted = if size.calibrated {
        format!("for about {} tokens", settings.prompt_tokens)
    } else {
        "not fitted to tokens, because the server counts none".to_owned()
    };
    format!(
        "{} at {}: closed loop, prompts of {words} words ({fitted}), {} tokens out, seed {}; median [min..max]",
        settings.model, settings.url_text, settings.max_tokens, settings.seed
    )
}

fn print_json(settings: &Settings, size: PromptSize, levels: &[Level]) {
    let results: Vec<_> = levels.iter().map(Level::json).collect();
    let method = format!(
        "closed loop over HTTP, streamed chat completions at temperature 0 with prompts that share no beginning; a warm-up and {} \
         repeats per level, median; percentiles by nearest rank",
        settings.repeats
    );
    say!(
        "{}",
        json!({
            "results": results, "url": settings.url_text, "model": settings.model, "max_tokens": settings.max_tokens,
            "prompt_words": size.words, "calibrated": size.calibrated, "seed": settings.seed, "repeats": settings.repeats,
            "method": method,
        })
    );
}

//! The closed loop: each client sends its next request when its last one is done. Knows which prompts are sent and when; what comes
//! back is the client's, what it amounts to the figures'.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::bail;
use cpu_time::ProcessTime;
use serde_json::json;
use tokio::task::JoinSet;

use super::answer::Sample;
use super::calibration::{self, Next, Probe};
use super::client::Client;
use super::endpoint::Endpoint;
use super::failure::{Failed, Tally};
use super::prompts::Prompts;

/// Probes that may fail before the server is given up.
const PROBE_ATTEMPTS: usize = 3;
/// A probe asks for the count of its prompt.
const PROBE_OUTPUT: u32 = 4;

/// The requests of a whole run; none is sent twice.
pub(super) struct Workload {
    pub(super) endpoint: Arc<Endpoint>,
    pub(super) model: String,
    pub(super) prompts: Prompts,
    pub(super) max_tokens: u32,
    /// Index of the next prompt.
    pub(super) next: AtomicU32,
}

/// One pass over the requests of a level.
#[derive(Debug)]
pub(super) struct Round {
    /// From the first request's sending to the last one's end.
    pub(super) wall: Duration,
    /// Of this whole process meanwhile.
    pub(super) client_cpu: Duration,
    pub(super) samples: Vec<Sample>,
    pub(super) failures: Tally,
}

/// How long prompts are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PromptSize {
    pub(super) words: usize,
    /// The server counts tokens, so that the words could be fitted.
    pub(super) calibrated: bool,
}

impl Workload {
    fn body(&self, words: usize, max_tokens: u32) -> String {
        let content = self.prompts.prompt(self.next.fetch_add(1, Ordering::Relaxed), words);
        json!({
            "model": self.model, "messages": [{"role": "user", "content": content}], "max_tokens": max_tokens, "temperature": 0,
            "stream": true, "stream_options": {"include_usage": true}, "ignore_eos": true
        })
        .to_string()
    }

    async fn ask(&self, client: &mut Client, words: usize, max_tokens: u32) -> Result<Sample, Failed> {
        client.ask(self.body(words, max_tokens), max_tokens).await
    }

    /// The words that make a prompt of `wanted` tokens as the server counts them.
    ///
    /// # Errors
    /// Probes fail again and again; then there is nothing to measure.
    pub(super) async fn calibrate(&self, wanted: usize) -> anyhow::Result<PromptSize> {
        let mut client = Client::new(self.endpoint.clone());
        let (mut probes, mut failed) = (Vec::new(), 0);
        loop {
            let words = match calibration::next(&probes, wanted) {
                Next::Words(words) => return Ok(PromptSize { words, calibrated: true }),
                Next::Probe(words) => words,
            };
            match self.ask(&mut client, words, PROBE_OUTPUT.min(self.max_tokens)).await {
                Ok(sample) => match sample.usage.and_then(|usage| usage.prompt_tokens) {
                    Some(tokens) => probes.push(Probe { words, tokens: tokens as usize }),
                    None => return Ok(PromptSize { words: wanted, calibrated: false }),
                },
                Err(error) => {
                    failed += 1;
                    if failed == PROBE_ATTEMPTS {
                        bail!("{failed} first requests failed, so nothing is measured: {}: {}", error.kind, error.shown());
                    }
                }
            }
        }
    }

    /// Sends `requests` requests through all clients, which are there again afterwards.
    pub(super) async fn round(self: &Arc<Self>, clients: &mut Vec<Client>, requests: u32, words: usize) -> Round {
        let left = Arc::new(AtomicU32::new(requests));
        let mut tasks = JoinSet::new();
        let (began, began_cpu) = (Instant::now(), ProcessTime::now());
        for client in clients.drain(..) {
            tasks.spawn(self.clone().run_client(client, left.clone(), words));
        }
        let mut round =
            Round { wall: Duration::ZERO, client_cpu: Duration::ZERO, samples: Vec::new(), failures: Tally::default() };
        while let Some(ended) = tasks.join_next().await {
            let (client, samples, failures) = match ended {
                Ok(ended) => ended,
                Err(error) => std::panic::resume_unwind(error.into_panic()),
            };
            clients.push(client);
            round.samples.extend(samples);
            round.failures.merge(failures);
        }
        Round { wall: began.elapsed(), client_cpu: began_cpu.elapsed(), ..round }
    }

    async fn run_client(self: Arc<Self>, mut client: Client, left: Arc<AtomicU32>, words: usize) -> (Client, Vec<Sample>, Tally) {
        let (mut samples, mut failures) = (Vec::new(), Tally::default());
        let take = || left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok();
        while take() {
            match self.ask(&mut client, words, self.max_tokens).await {
                Ok(sample) => samples.push(sample),
                Err(failed) => failures.add(&failed),
            }
            // Requests that fail at once must not keep the others' answers from being read.
            tokio::task::yield_now().await;
        }
        (client, samples, failures)
    }
}

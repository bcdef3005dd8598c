//! One scrape: what the node, the engine and the policy slots count, as Prometheus text.
//!
//! Names with `vllm:` mean what they mean there, so that dashboards and endpoint pickers read them.

use millrace_engine::{EngineSnapshot, TokenHistogram};

use crate::fleet::ProcessFacts;

use super::exposition::{Exposition, Labels};
use super::histogram::HistogramFacts;
use super::policies::{SlotLabels, policies};
use super::{Metrics, Outcome, prefixes, processes};

/// A lane as labels tell it.
pub(crate) struct LaneLabels {
    pub(crate) name: String,
    pub(crate) precision: String,
}

/// Everything a scrape tells beside the node's own counts.
pub(crate) struct Scrape<'a> {
    pub(crate) model: &'a str,
    pub(crate) lanes: &'a [LaneLabels],
    pub(crate) page_tokens: u32,
    pub(crate) slots: Vec<SlotLabels>,
    /// Ends of requests that policies were not told of.
    pub(crate) outcomes_dropped: u64,
    pub(crate) engine: &'a EngineSnapshot,
    pub(crate) processes: Vec<ProcessFacts>,
    pub(crate) waiting: u32,
    pub(crate) running: u32,
    pub(crate) ready: u8,
    pub(crate) uptime_s: f64,
}

impl Metrics {
    pub(crate) fn render(&self, scrape: &Scrape<'_>) -> String {
        let mut out = Exposition::default();
        self.requests(&mut out, scrape);
        self.latencies(&mut out, scrape);
        engine(&mut out, scrape);
        pools(&mut out, scrape);
        prefixes::pages(&mut out, &scrape.engine.pools);
        processes::links(&mut out, &scrape.engine.links);
        processes::lives(&mut out, &scrape.processes);
        lanes(&mut out, scrape);
        policies(&mut out, &scrape.slots, scrape.outcomes_dropped);
        self.server(&mut out, scrape);
        out.finish()
    }

    fn requests(&self, out: &mut Exposition, scrape: &Scrape<'_>) {
        let model: Labels<'_> = &[("model_name", scrape.model)];
        out.gauge("vllm:num_requests_running", "Requests that have a first token.", model, f64::from(scrape.running));
        out.gauge("vllm:num_requests_waiting", "Requests without a first token.", model, f64::from(scrape.waiting));
        out.counter(
            "vllm:prompt_tokens_total",
            "Prompt tokens of requests that were prefilled.",
            model,
            self.prompt_tokens.get(),
        );
        out.counter("vllm:generation_tokens_total", "Tokens generated.", model, self.generation_tokens.get());
        prefixes::tokens(out, &scrape.engine.pools, model);
        out.family("vllm:request_success_total", "counter", "Requests by how they ended; `error` is Millrace's own.");
        for (outcome, counter) in Outcome::ALL.into_iter().zip(&self.outcomes) {
            let labels: Labels<'_> = &[("model_name", scrape.model), ("finished_reason", outcome.label())];
            out.sample("vllm:request_success_total", labels, counter.get() as f64);
        }
        out.counter("millrace_requests_refused_total", "Requests refused before an engine saw them.", model, self.refused.get());
        out.counter("millrace_stop_string_matches_total", "Answers ended by a stop string.", model, self.stop_strings.get());
    }

    fn latencies(&self, out: &mut Exposition, scrape: &Scrape<'_>) {
        let model: Labels<'_> = &[("model_name", scrape.model)];
        let families = [
            ("vllm:time_to_first_token_seconds", "From arrival to the first token.", &self.time_to_first_token),
            ("vllm:inter_token_latency_seconds", "Between tokens of a request.", &self.inter_token),
            (
                "vllm:request_time_per_output_token_seconds",
                "Mean time per token after the first, per request.",
                &self.per_output_token,
            ),
            ("vllm:e2e_request_latency_seconds", "From arrival to the end.", &self.end_to_end),
            ("vllm:request_queue_time_seconds", "From submission to the first step.", &self.queue),
            ("vllm:request_prefill_time_seconds", "From the first step to the first token.", &self.prefill),
            ("vllm:request_decode_time_seconds", "From the first token to the last.", &self.decode),
            ("vllm:request_prompt_tokens", "Prompt tokens per request.", &self.request_prompt_tokens),
            ("vllm:request_generation_tokens", "Generated tokens per request.", &self.request_generation_tokens),
        ];
        for (name, help, histogram) in families {
            out.histogram(name, help, model, &histogram.facts());
        }
    }

    fn server(&self, out: &mut Exposition, scrape: &Scrape<'_>) {
        out.family("millrace_http_responses_total", "counter", "Answers by class of status.");
        for (class, count) in self.http_responses.classes() {
            out.sample("millrace_http_responses_total", &[("class", class)], count as f64);
        }
        out.counter("millrace_http_connections_total", "Connections accepted.", &[], self.http_connections.get());
        let spare = self.http_spare_connections.get();
        out.counter("millrace_http_spare_connections_total", "Connections beyond the bound, for probes alone.", &[], spare);
        out.counter("millrace_auth_failures_total", "Requests without a valid key.", &[], self.auth_failures.get());
        out.gauge("millrace_ready", "1 while new requests are taken.", &[], f64::from(scrape.ready));
        out.gauge("millrace_uptime_seconds", "Since the node started.", &[], scrape.uptime_s);
        let version = env!("CARGO_PKG_VERSION");
        out.gauge("millrace_build_info", "1; the labels tell the build.", &[("version", version)], 1.0);
    }
}

fn engine(out: &mut Exposition, scrape: &Scrape<'_>) {
    let model: Labels<'_> = &[("model_name", scrape.model)];
    let lanes = &scrape.engine.lanes;
    let total: u64 = lanes.iter().map(|l| u64::from(l.total_pages)).sum();
    let free: u64 = lanes.iter().map(|l| u64::from(l.free_pages)).sum();
    let used = if total == 0 { 0.0 } else { total.saturating_sub(free) as f64 / total as f64 };
    out.gauge("vllm:kv_cache_usage_perc", "Share of the decode pools' pages in use, 0 to 1.", model, used);
    let counters = &scrape.engine.counters;
    let help = "Tokens of a step: of prompts in a prefill engine's, one a sequence in a decode engine's.";
    out.histogram("vllm:iteration_tokens_total", help, model, &step_tokens(&scrape.engine.step_tokens));
    out.counter("vllm:num_preemptions_total", "Sequences preempted.", model, counters.preemptions);
    let (block, blocks) = (scrape.page_tokens.to_string(), total.to_string());
    let labels: Labels<'_> = &[("model_name", scrape.model), ("block_size", &block), ("num_gpu_blocks", &blocks)];
    out.gauge("vllm:cache_config_info", "1; the labels tell the pages of the decode pools.", labels, 1.0);
    let families = [
        ("millrace_kv_tag_checks_total", "Page-table entries whose tag a step checked.", counters.tag_checks),
        ("millrace_kv_page_mismatches_total", "Requests stopped by a tag check.", counters.page_mismatches),
        ("millrace_outputs_not_finite_total", "Requests stopped because the model's output was no number.", counters.not_finite),
        ("millrace_handoffs_total", "Sequences handed from prefill to decode.", counters.hand_offs),
        ("millrace_handoff_pages_total", "Pages handed from prefill to decode.", counters.hand_off_pages),
        ("millrace_handoffs_aborted_total", "Hand-offs that were given up.", counters.hand_offs_aborted),
        ("millrace_sequences_finished_total", "Sequences that the engines finished.", counters.finished),
        ("millrace_sequences_aborted_total", "Sequences aborted from outside.", counters.aborted),
        ("millrace_sequences_failed_total", "Sequences that the engines failed.", counters.failed),
    ];
    for (name, help, value) in families {
        out.counter(name, help, &[], value);
    }
}

fn step_tokens(steps: &TokenHistogram) -> HistogramFacts {
    let mut count = 0_u64;
    let mut cumulative = Vec::with_capacity(TokenHistogram::BOUNDS.len());
    for (bucket, steps) in steps.counts().iter().enumerate() {
        count = count.saturating_add(*steps);
        if let Some(&bound) = TokenHistogram::BOUNDS.get(bucket) {
            cumulative.push((f64::from(bound), count));
        }
    }
    HistogramFacts { cumulative, count, sum: steps.sum() as f64 }
}

fn pools(out: &mut Exposition, scrape: &Scrape<'_>) {
    let pools = &scrape.engine.pools;
    out.family("millrace_pool_pages", "gauge", "Pages by state; the states add up to the pool.");
    for pool in pools {
        let stage = pool.stage.to_string();
        let states = [
            ("free", pool.free_pages),
            ("quarantined", pool.quarantined_pages),
            ("pinned", pool.pinned_pages),
            ("evictable", pool.evictable_pages),
        ];
        for (state, pages) in states {
            let labels: Labels<'_> = &[("pool", &pool.name), ("stage", &stage), ("state", state)];
            out.sample("millrace_pool_pages", labels, f64::from(pages));
        }
    }
    out.family("millrace_pool_suspect_pages", "gauge", "Pages under suspicion after a tag mismatch, until they are readmitted.");
    for pool in pools {
        out.sample("millrace_pool_suspect_pages", &[("pool", &pool.name)], f64::from(pool.suspect_pages));
    }
    out.family("millrace_pool_bytes", "gauge", "Bytes of all pages.");
    for pool in pools {
        let bytes = f64::from(pool.total_pages) * pool.page_bytes as f64;
        out.sample("millrace_pool_bytes", &[("pool", &pool.name)], bytes);
    }
    out.family("millrace_steps_total", "counter", "Steps of a pool's engine.");
    for pool in pools {
        let stage = pool.stage.to_string();
        out.sample("millrace_steps_total", &[("pool", &pool.name), ("stage", &stage)], pool.steps as f64);
    }
    out.family("millrace_plans_reused_total", "counter", "Steps planned from an earlier answer of the schedule policy.");
    for pool in pools {
        let stage = pool.stage.to_string();
        out.sample("millrace_plans_reused_total", &[("pool", &pool.name), ("stage", &stage)], pool.plans_reused as f64);
    }
    out.family("millrace_step_seconds", "gauge", "Recent time of a step.");
    for pool in pools {
        out.sample("millrace_step_seconds", &[("pool", &pool.name)], f64::from(pool.step_us) / 1e6);
    }
    out.family("millrace_step_phase_seconds_total", "counter", "Where a pool's time goes from step to step.");
    for pool in pools {
        for (phase, us) in pool.phases.named() {
            out.sample("millrace_step_phase_seconds_total", &[("pool", &pool.name), ("phase", phase)], us as f64 / 1e6);
        }
    }
    out.family("millrace_step_rows", "gauge", "Rows of the last step.");
    for pool in pools {
        out.sample("millrace_step_rows", &[("pool", &pool.name)], f64::from(pool.last_rows));
    }
    out.family("millrace_pool_healthy", "gauge", "1 while the pool's engine works.");
    for pool in pools {
        out.sample("millrace_pool_healthy", &[("pool", &pool.name)], f64::from(u8::from(pool.healthy)));
    }
}

fn lanes(out: &mut Exposition, scrape: &Scrape<'_>) {
    out.family("millrace_lane_info", "gauge", "1; the labels tell the lane's precision.");
    for lane in scrape.lanes {
        out.sample("millrace_lane_info", &[("lane", &lane.name), ("precision", &lane.precision)], 1.0);
    }
    let facts = &scrape.engine.lanes;
    out.family("millrace_lane_sequences", "gauge", "Sequences of a lane by state.");
    for lane in facts {
        for (state, count) in [("waiting", lane.waiting), ("running", lane.running)] {
            out.sample("millrace_lane_sequences", &[("lane", &lane.name), ("state", state)], f64::from(count));
        }
    }
    out.family("millrace_lane_ttft_seconds", "gauge", "Recent time from submission to the first token.");
    for lane in facts {
        out.sample("millrace_lane_ttft_seconds", &[("lane", &lane.name)], f64::from(lane.ttft_us) / 1e6);
    }
    out.family("millrace_lane_itl_seconds", "gauge", "Recent time between tokens.");
    for lane in facts {
        out.sample("millrace_lane_itl_seconds", &[("lane", &lane.name)], f64::from(lane.itl_us) / 1e6);
    }
    out.family("millrace_lane_healthy", "gauge", "1 while the lane takes requests.");
    for lane in facts {
        out.sample("millrace_lane_healthy", &[("lane", &lane.name)], f64::from(u8::from(lane.healthy)));
    }
}

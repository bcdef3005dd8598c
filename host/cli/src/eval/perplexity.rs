//! `millrace eval perplexity`: how well a model predicts a text. Knows how to ask and print, not how anything is computed.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use millrace_core::{KvFormat, StageRecipe};
use millrace_model::eval::{Perplexity, Score, perplexity};
use serde_json::{Value, json};

use super::lane::{LaneWish, Loader, Progress, RunArgs, describe_protocol, protocol_json};
use super::precision::StageWish;
use super::text::{Text, TextArgs};
use crate::bench::parse_kv;
use crate::output::say;

#[derive(Args)]
pub(crate) struct PerplexityArgs {
    /// GGUF file or hub directory.
    #[arg(long)]
    model: PathBuf,
    #[command(flatten)]
    text: TextArgs,
    /// Of both stages: stored, bf16, fp8, int8 or int4.
    #[arg(long, default_value = "stored")]
    weights: StageRecipe,
    /// Of both stages: f32, bf16 or fp8; f32 with reference compute and bf16 with fast compute where not given.
    #[arg(long, value_parser = parse_kv)]
    kv: Option<KvFormat>,
    /// Weights of prefill, where they differ from --weights.
    #[arg(long)]
    prefill_weights: Option<StageRecipe>,
    /// Weights of decode, where they differ from --weights.
    #[arg(long)]
    decode_weights: Option<StageRecipe>,
    /// KV format of prefill, where it differs from --kv.
    #[arg(long, value_parser = parse_kv)]
    prefill_kv: Option<KvFormat>,
    /// KV format of decode, where it differs from --kv; it may be narrower than prefill's, not wider.
    #[arg(long, value_parser = parse_kv)]
    decode_kv: Option<KvFormat>,
    /// Another checkpoint of the same model, for decode.
    #[arg(long, value_name = "MODEL")]
    decode_model: Option<PathBuf>,
    #[command(flatten)]
    run: RunArgs,
}

impl PerplexityArgs {
    /// Whether prefill and decode are told apart.
    fn staged(&self) -> bool {
        let recipes = self.prefill_weights.is_some() || self.decode_weights.is_some();
        let formats = self.prefill_kv.is_some() || self.decode_kv.is_some();
        recipes || formats || self.decode_model.is_some() || self.run.splits()
    }
}

pub(super) fn run(args: &PerplexityArgs) -> Result<()> {
    let mut loader = Loader::new(&args.run);
    let decode_model = args.decode_model.as_ref().unwrap_or(&args.model);
    let text = Text::read(&args.text, &*loader.open(&args.model)?)?;
    loader.open(decode_model)?;
    loader.check_agreement(&text)?;
    let stage = |recipe: Option<StageRecipe>, kv: Option<KvFormat>| {
        StageWish { recipe: recipe.unwrap_or(args.weights), kv: kv.or(args.kv) }.precision(args.run.compute)
    };
    let lane = loader.lane(&LaneWish {
        compute: args.run.compute,
        prefill: (&args.model, stage(args.prefill_weights, args.prefill_kv)),
        decode: (decode_model, stage(args.decode_weights, args.decode_kv)),
    })?;
    let protocol = args.run.protocol(&text, lane.context(), args.staged())?;
    let mut progress = Progress::new(protocol.scored_tokens(text.ids.len()));
    let found = perplexity(lane.lane(), &text.ids, &protocol, &mut |done| progress.show(done))?;
    let seconds = progress.finish();
    let rate = found.all.tokens as f64 / seconds;
    if args.run.json {
        let mut report = score_json(&found.all);
        let fields = json!({
            "tokens_per_second": rate, "prefill": score_json(&found.prefill), "decode": score_json(&found.decode),
            "lane": lane.json(), "protocol": protocol_json(&protocol, text.ids.len()),
        });
        if let (Value::Object(report), Value::Object(fields)) = (&mut report, fields) {
            report.extend(fields);
        }
        say!("{report}");
    } else {
        say!("{} on {}", lane.name(), lane.device());
        say!("{}", describe_protocol(&protocol, text.ids.len()));
        print_scores(&found);
        say!("{rate:.1} tokens/s");
    }
    Ok(())
}

fn score_json(score: &Score) -> Value {
    match score.tokens {
        0 => json!({"tokens": 0}),
        tokens => json!({"tokens": tokens, "perplexity": score.perplexity(), "bits_per_token": score.bits_per_token()}),
    }
}

fn print_scores(found: &Perplexity) {
    say!("stage      tokens   perplexity   bits/token");
    let stages = [("all", &found.all), ("prefill", &found.prefill), ("decode", &found.decode)];
    // One stage alone is all there is.
    let shown = if found.decode.tokens == 0 { 1 } else { 3 };
    for (name, score) in stages.into_iter().take(shown).filter(|(_, score)| score.tokens > 0) {
        say!("{name:<8} {:>8}   {:>10.4}   {:>10.4}", score.tokens, score.perplexity(), score.bits_per_token());
    }
}

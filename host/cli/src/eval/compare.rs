//! `millrace eval compare A B`: how far two precisions' predictions are apart. Knows how to ask and print, not how anything is
//! computed.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use millrace_model::eval::{Choice, Comparison, Divergence, WorstToken, compare};
use serde_json::{Value, json};

use super::lane::{LaneWish, LoadedLane, Loader, Progress, RunArgs, describe_protocol, protocol_json};
use super::precision::Side;
use super::text::{Text, TextArgs};
use crate::output::say;

#[derive(Args)]
pub(crate) struct CompareArgs {
    /// Precision that counts as right: `[COMPUTE:]PREFILL[/DECODE]`, each stage `RECIPE[+kv-FORMAT]`.
    a: Side,
    /// Precision that is judged, written likewise.
    b: Side,
    /// GGUF file or hub directory; of A, and of B where nothing else is said.
    #[arg(long)]
    model: PathBuf,
    /// Another checkpoint of the same model, for A's decode.
    #[arg(long, value_name = "MODEL")]
    a_decode_model: Option<PathBuf>,
    /// Another checkpoint of the same model, for B.
    #[arg(long, value_name = "MODEL")]
    b_model: Option<PathBuf>,
    /// Another checkpoint of the same model, for B's decode.
    #[arg(long, value_name = "MODEL")]
    b_decode_model: Option<PathBuf>,
    #[command(flatten)]
    text: TextArgs,
    #[command(flatten)]
    run: RunArgs,
}

impl CompareArgs {
    fn staged(&self) -> bool {
        let decodes = self.a.decode.is_some() || self.b.decode.is_some();
        decodes || self.a_decode_model.is_some() || self.b_decode_model.is_some() || self.run.splits()
    }

    fn lanes(&self) -> [LaneWish<'_>; 2] {
        let b_model = self.b_model.as_ref().unwrap_or(&self.model);
        let wish = |side: &Side, prefill, decode| {
            let compute = side.compute.unwrap_or(self.run.compute);
            LaneWish {
                compute,
                prefill: (prefill, side.prefill.precision(compute)),
                decode: (decode, side.decode.unwrap_or(side.prefill).precision(compute)),
            }
        };
        [
            wish(&self.a, &self.model, self.a_decode_model.as_ref().unwrap_or(&self.model)),
            wish(&self.b, b_model, self.b_decode_model.as_ref().unwrap_or(b_model)),
        ]
    }
}

pub(super) fn run(args: &CompareArgs) -> Result<()> {
    let mut loader = Loader::new(&args.run);
    let text = Text::read(&args.text, &*loader.open(&args.model)?)?;
    let wishes = args.lanes();
    for wish in &wishes {
        loader.open(wish.prefill.0)?;
        loader.open(wish.decode.0)?;
    }
    loader.check_agreement(&text)?;
    let [a, b] = &wishes;
    let (a, b) = (loader.lane(a)?, loader.lane(b)?);
    let protocol = args.run.protocol(&text, a.context().min(b.context()), args.staged())?;
    let mut progress = Progress::new(protocol.scored_tokens(text.ids.len()));
    let found = compare(a.lane(), b.lane(), &text.ids, &protocol, &mut |done| progress.show(done))?;
    let seconds = progress.finish();
    if args.run.json {
        let mut report = divergence_json(&found.all);
        let worst: Vec<Value> = found.worst.iter().map(|token| worst_json(token, &text)).collect();
        let fields = json!({
            "a": a.json(), "b": b.json(), "prefill": divergence_json(&found.prefill), "decode": divergence_json(&found.decode),
            "worst": worst, "seconds": seconds, "protocol": protocol_json(&protocol, text.ids.len()),
        });
        if let (Value::Object(report), Value::Object(fields)) = (&mut report, fields) {
            report.extend(fields);
        }
        say!("{report}");
    } else {
        say!("{}", describe_protocol(&protocol, text.ids.len()));
        print_comparison([&a, &b], &found, &text);
    }
    Ok(())
}

fn divergence_json(found: &Divergence) -> Value {
    match found.tokens {
        0 => json!({"tokens": 0}),
        tokens => json!({
            "tokens": tokens,
            "kl_nat": {"mean": found.mean, "median": found.median, "p99": found.p99, "max": found.max},
            "same_top": found.same_top,
            "perplexity": {"a": found.a.perplexity(), "b": found.b.perplexity(), "ratio": found.perplexity_ratio()},
        }),
    }
}

fn worst_json(token: &WorstToken, text: &Text) -> Value {
    let choice = |choice: &Choice| json!({"id": choice.id, "text": text.token(choice.id), "a": choice.a, "b": choice.b});
    json!({
        "token": token.place.token, "stage": token.place.stage.to_string(), "kl_nat": token.divergence,
        "before": text.before(token.place.token), "actual": choice(&token.actual),
        "top_a": choice(&token.top_a), "top_b": choice(&token.top_b),
    })
}

fn print_comparison([a, b]: [&LoadedLane; 2], found: &Comparison, text: &Text) {
    say!("A  {} on {}", a.name(), a.device());
    say!("B  {} on {}", b.name(), b.device());
    say!("stage      tokens   KL mean   median      p99      max   same top   perplexity A          B    B / A");
    let stages = [("all", &found.all), ("prefill", &found.prefill), ("decode", &found.decode)];
    // One stage alone is all there is.
    let shown = if found.decode.tokens == 0 { 1 } else { 3 };
    for (name, row) in stages.into_iter().take(shown).filter(|(_, row)| row.tokens > 0) {
        say!(
            "{name:<8} {:>8}   {:.5}  {:.5}  {:.5}  {:.5}   {:>6.2} %   {:>12.4} {:>10.4}  {:.5}",
            row.tokens,
            row.mean,
            row.median,
            row.p99,
            row.max,
            row.same_top * 100.0,
            row.a.perplexity(),
            row.b.perplexity(),
            row.perplexity_ratio()
        );
    }
    say!("worst tokens (probability in A, in B):");
    for token in &found.worst {
        let choice = |choice: &Choice| format!("{} {:.4} {:.4}", text.token(choice.id), choice.a, choice.b);
        say!(
            "  {:>6} {:<7} KL {:.5}  after {}: {}; A's best {}; B's best {}",
            token.place.token,
            token.place.stage.to_string(),
            token.divergence,
            text.before(token.place.token),
            choice(&token.actual),
            choice(&token.top_a),
            choice(&token.top_b)
        );
    }
}

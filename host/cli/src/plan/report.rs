//! A plan for people: tables, each figure with its formula. Knows no arithmetic but columns.

use std::fmt::Write as _;

use millrace_model::plan::{KvBytes, Room, StagePlan, gib, thousands};

use super::Planned;

/// The whole report.
pub(super) fn of(planned: &Planned) -> String {
    let sections = [heading, tensors, recipes, kv, capacities, stages, together, unknowns];
    sections.map(|section| section(planned)).join("\n")
}

fn heading(planned: &Planned) -> String {
    let (spec, host) = (&planned.spec, &planned.request.host);
    let mtp = match spec.prediction_layers {
        0 => String::new(),
        count => format!(" + {count} for multi-token prediction (MTP)"),
    };
    format!(
        "{}: {}, {} layers{mtp}, hidden {}, vocabulary {}, context {} tokens\n\
         host: {} GPUs x {} GiB = {} GiB; reserve {} GiB per GPU and stage; pages of {} tokens\n\
         GiB = 2^30 bytes, B = bytes\n",
        planned.path.display(),
        planned.architecture,
        spec.layers.len(),
        thousands(spec.hidden as u64),
        thousands(spec.vocab as u64),
        thousands(spec.max_tokens as u64),
        host.gpus,
        gib(host.bytes_per_gpu),
        gib(host.bytes()),
        gib(host.reserve_bytes),
        planned.request.page_tokens,
    )
}

fn tensors(planned: &Planned) -> String {
    let mut rows =
        vec![["TENSORS", "rows", "cols", "count", "in MTP", "parameters = rows x cols x (count + in MTP)"].map(str::to_owned)];
    for group in &planned.plan.tensors {
        let parameters = group.parameters() + group.prediction_parameters();
        let numbers = [group.rows, group.cols, group.count, group.prediction_count, parameters].map(thousands);
        let [first, second, third, fourth, fifth] = numbers;
        rows.push([group.name.to_owned(), first, second, third, fourth, fifth]);
    }
    let (model, prediction) = planned.plan.parameters();
    let mut text = table(&rows);
    let _ = writeln!(text, "parameters: {} = {:.1} billion without MTP", thousands(model), model as f64 / 1e9);
    if prediction > 0 {
        let all = model + prediction;
        let _ = writeln!(
            text,
            "            {} + {} = {} = {:.1} billion with MTP",
            thousands(model),
            thousands(prediction),
            thousands(all),
            all as f64 / 1e9
        );
    }
    text
}

fn recipes(planned: &Planned) -> String {
    let has_mtp = planned.spec.prediction_layers > 0;
    let mut head = vec!["WEIGHTS, GiB", "without MTP"];
    head.extend(["MTP", "with MTP"].into_iter().filter(|_| has_mtp));
    head.extend(["per GPU", "without MTP = codes + scales, by format"]);
    let mut rows = vec![head.into_iter().map(str::to_owned).collect::<Vec<_>>()];
    for row in &planned.plan.recipes {
        let (model, prediction) = (row.model.bytes(), row.prediction.bytes());
        let mut cells = vec![row.recipe.to_string(), gib(model)];
        cells.extend([gib(prediction), gib(model + prediction)].into_iter().filter(|_| has_mtp));
        cells.extend([gib(row.room.weights_per_gpu), row.model.formula()]);
        rows.push(cells);
    }
    let counted =
        if has_mtp && planned.request.counted == millrace_model::plan::Counted::ModelAndPrediction { "with" } else { "without" };
    format!("{}per GPU = {counted} MTP / {} GPUs\n", table(&rows), planned.request.host.gpus)
}

fn kv(planned: &Planned) -> String {
    let mut rows = vec![["KV, bytes per token", "plane", "bytes", "formula"].map(str::to_owned)];
    for kv in &planned.plan.kv {
        for plane in &kv.planes {
            rows.push([
                kv.format.to_string(),
                plane.plane.replace('_', " "),
                thousands(plane.bytes_per_token),
                plane.formula.clone(),
            ]);
        }
        rows.push([String::new(), "all".to_owned(), thousands(kv.bytes_per_token()), "sum of planes".to_owned()]);
        rows.push([String::new(), "per GPU".to_owned(), thousands(kv.bytes_per_token_and_gpu), kv.share_formula()]);
        rows.push([String::new(), "page per GPU".to_owned(), thousands(kv.page_bytes_per_gpu), kv.page_formula()]);
    }
    table(&rows)
}

fn capacities(planned: &Planned) -> String {
    let mut head = vec!["ONE STAGE ON THE HOST".to_owned(), "pool GiB".to_owned()];
    for kv in &planned.plan.kv {
        head.extend([format!("{} pages", kv.format), format!("{} tokens", kv.format)]);
    }
    head.push("pool per GPU".to_owned());
    let mut rows = vec![head];
    for row in &planned.plan.recipes {
        let mut cells = vec![row.recipe.to_string(), gib(row.room.pool_bytes)];
        for capacity in &row.capacities {
            match row.room.missing() {
                0 => cells.extend([thousands(capacity.pages), thousands(capacity.tokens)]),
                _ => cells.extend(["-".to_owned(), "-".to_owned()]),
            }
        }
        cells.push(row.room.formula());
        rows.push(cells);
    }
    let rules = "pages = floor(pool / page per GPU), tokens = pages x tokens of a page; - where it does not fit\n\
                 every GPU holds its part of the same tokens, so these are the host's\n";
    format!("{}{rules}", table(&rows))
}

fn stages(planned: &Planned) -> String {
    [&planned.plan.prefill, &planned.plan.decode].map(|stage| one_stage(stage, planned.spec.max_tokens as u64)).join("\n")
}

fn one_stage(stage: &StagePlan, context: u64) -> String {
    let name = stage.stage.to_string().to_uppercase();
    let heading = format!("{name} alone on the host: weights {}, KV {}", stage.recipe, stage.kv.format);
    let (weights, room) = (&stage.weights, &stage.room);
    let rows = [
        ["weights".to_owned(), format!("{} GiB", gib(weights.bytes())), weights.formula()],
        ["per GPU".to_owned(), format!("{} GiB", gib(room.weights_per_gpu)), "weights / GPUs".to_owned()],
        ["pool per GPU".to_owned(), format!("{} GiB", gib(room.pool_bytes)), room.formula()],
        tokens_row(stage.capacity.tokens, &stage.capacity.formula(room.pool_bytes, &stage.kv), context),
        fit_row(room),
    ];
    format!("{heading}\n{}", table(&rows))
}

fn tokens_row(tokens: u64, formula: &str, context: u64) -> [String; 3] {
    let contexts = tokens as f64 / context.max(1) as f64;
    ["tokens".to_owned(), thousands(tokens), format!("{formula}; {contexts:.1} of the longest context")]
}

fn fit_row(room: &Room) -> [String; 3] {
    let (fits, formula) = match (room.missing(), room.pool_bytes) {
        (0, 0) => ("no", "nothing is left for pages".to_owned()),
        (0, _) if room.spare() == 0 => ("yes", "the pool is all that is left".to_owned()),
        (0, _) => ("yes", format!("{} GiB per GPU are spare", gib(room.spare()))),
        (missing, _) => ("no", format!("{} GiB per GPU are missing", gib(missing))),
    };
    ["fits".to_owned(), fits.to_owned(), formula]
}

fn together(planned: &Planned) -> String {
    let (both, host) = (&planned.plan.together, &planned.request.host);
    let (gpus, [prefill, decode]) = (host.gpus, both.weights);
    let size = |bytes: u64| format!("{} GiB", gib(bytes));
    let pools = match host.pool_bytes {
        Some(pool) => format!("2 stages x {gpus} GPUs x {} as asked", gib(pool)),
        None => format!("2 stages x {gpus} GPUs x {}, half of what is left", gib(both.pool_per_gpu)),
    };
    let mut rows = vec![
        [
            "weights".to_owned(),
            size(both.weights_apart()),
            format!("{} prefill + {} decode, two processes", gib(prefill), gib(decode)),
        ],
        ["shared".to_owned(), size(both.shared.bytes()), format!("in one process, one copy of {}", both.shared.formula())],
        ["one process".to_owned(), size(both.weights_in_one_process()), "weights - shared".to_owned()],
        ["reserve".to_owned(), size(both.reserve), format!("2 stages x {gpus} GPUs x {}", gib(host.reserve_bytes))],
        ["pools".to_owned(), size(both.pools), pools],
        ["needed".to_owned(), size(both.needed()), "one process + reserve + pools".to_owned()],
        ["usable".to_owned(), size(both.usable), format!("{gpus} GPUs x {}", gib(host.bytes_per_gpu))],
    ];
    let kvs: [&KvBytes; 2] = [&planned.plan.prefill.kv, &planned.plan.decode.kv];
    for ((capacity, kv), stage) in both.capacities.iter().zip(kvs).zip(["prefill", "decode"]) {
        let [_, tokens, formula] =
            tokens_row(capacity.tokens, &capacity.formula(both.pool_per_gpu, kv), planned.spec.max_tokens as u64);
        rows.push([format!("{stage} tokens"), tokens, formula]);
    }
    format!("BOTH STAGES ON ONE HOST\n{}{}\n", table(&rows), both.verdict())
}

fn unknowns(planned: &Planned) -> String {
    let mut text = "NOT KNOWN HERE\n".to_owned();
    for line in &planned.plan.unknowns {
        let _ = writeln!(text, "  - {line}");
    }
    text
}

/// Columns as wide as their widest cell: the first to the left, the last as it is, the others to the right.
fn table<R: AsRef<[String]>>(rows: &[R]) -> String {
    let columns = rows.iter().map(|row| row.as_ref().len()).max().unwrap_or(0);
    let width = |column: usize| rows.iter().filter_map(|row| row.as_ref().get(column)).map(String::len).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let cells = row.as_ref().iter().zip(&widths).enumerate().map(|(column, (cell, &width))| match column {
            0 => format!("{cell:<width$}"),
            column if column + 1 == columns => cell.clone(),
            _ => format!("{cell:>width$}"),
        });
        let _ = writeln!(text, "{}", cells.collect::<Vec<_>>().join("  ").trim_end());
    }
    text
}

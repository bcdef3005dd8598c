//! The tables that end a quantization. Knows no JSON.

use std::fmt::Write as _;
use std::path::Path;

use millrace_model::quantize::{Loss, QuantizeReport, QuantizedFormat, Sums};

pub(crate) fn of(report: &QuantizeReport, format: QuantizedFormat, destination: &Path) -> String {
    let width =
        report.worst().into_iter().chain(&report.layers).map(|loss| loss.name.len()).max().unwrap_or(0).max("layer".len());
    let mut out = format!("{:width$}  relative error    cosine\n", "layer");
    report.layers.iter().for_each(|layer| row(&mut out, width, &layer.name, &layer.sums));
    row(&mut out, width, "all", &report.total);
    _ = writeln!(out, "\n{:width$}  relative error    cosine", "worst tensors");
    report.worst().into_iter().for_each(|Loss { name, sums }| row(&mut out, width, name, sums));
    out.push('\n');
    for kept in &report.kept {
        let (count, size) = (kept.count, gib(kept.bytes));
        _ = writeln!(out, "kept {count} projections ({size}) because {}; the first is {}", kept.why, kept.example);
    }
    let name = match format {
        QuantizedFormat::Fp8Block => "FP8 (128x128 blocks)".to_owned(),
        QuantizedFormat::Int4Group { group } => format!("INT4 (groups of {group})"),
    };
    let (tensors, parameters, files) = (report.tensors.len(), report.parameters, report.files);
    #[expect(clippy::cast_precision_loss, reason = "a percentage for people to look at")]
    let percent = report.bytes_after as f64 * 100.0 / report.bytes_before.max(1) as f64;
    let (before, after) = (gib(report.bytes_before), gib(report.bytes_after));
    _ = writeln!(out, "{tensors} tensors, {parameters} parameters in {name}, stored as {}", report.stored_as);
    _ = writeln!(out, "{before} -> {after} ({percent:.1} %), {files} file(s) in {}", destination.display());
    for elsewhere in &report.loads_elsewhere {
        _ = writeln!(out, "warning: {elsewhere}");
    }
    out
}

fn row(out: &mut String, width: usize, name: &str, sums: &Sums) {
    _ = writeln!(out, "{name:width$}  {:14.5}  {:8.6}", sums.relative_error(), sums.cosine());
}

fn gib(bytes: u64) -> String {
    #[expect(clippy::cast_precision_loss, reason = "a size for people to look at")]
    let mib = bytes as f64 / (1u64 << 20) as f64;
    if mib >= 1024.0 { format!("{:.2} GiB", mib / 1024.0) } else { format!("{mib:.2} MiB") }
}

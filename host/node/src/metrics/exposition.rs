//! Prometheus' text format 0.0.4: `# HELP`, `# TYPE`, then one line per sample.
//! Source: the exposition format of the Prometheus documentation.

use std::fmt::Write as _;

use super::histogram::HistogramFacts;

/// What a scrape is answered with.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// `(name, value)` pairs of one sample.
pub(super) type Labels<'a> = &'a [(&'a str, &'a str)];

/// Text under construction. Writing to a `String` cannot fail, so results of `write!` are dropped.
#[derive(Default)]
pub(super) struct Exposition {
    text: String,
}

impl Exposition {
    pub(super) fn finish(self) -> String {
        self.text
    }

    /// Starts a family; its samples follow at once.
    pub(super) fn family(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    pub(super) fn sample(&mut self, name: &str, labels: Labels<'_>, value: f64) {
        self.text.push_str(name);
        self.labels(labels, None);
        let _ = writeln!(self.text, " {value}");
    }

    /// A family with one sample.
    pub(super) fn counter(&mut self, name: &str, help: &str, labels: Labels<'_>, value: u64) {
        self.family(name, "counter", help);
        self.sample(name, labels, value as f64);
    }

    /// A family with one sample.
    pub(super) fn gauge(&mut self, name: &str, help: &str, labels: Labels<'_>, value: f64) {
        self.family(name, "gauge", help);
        self.sample(name, labels, value);
    }

    /// A family with one histogram.
    pub(super) fn histogram(&mut self, name: &str, help: &str, labels: Labels<'_>, facts: &HistogramFacts) {
        self.family(name, "histogram", help);
        for (bound, count) in &facts.cumulative {
            let _ = write!(self.text, "{name}_bucket");
            self.labels(labels, Some(&bound.to_string()));
            let _ = writeln!(self.text, " {count}");
        }
        let _ = write!(self.text, "{name}_bucket");
        self.labels(labels, Some("+Inf"));
        let _ = writeln!(self.text, " {}", facts.count);
        self.sample(&format!("{name}_sum"), labels, facts.sum);
        self.sample(&format!("{name}_count"), labels, facts.count as f64);
    }

    fn labels(&mut self, labels: Labels<'_>, le: Option<&str>) {
        let all = labels.iter().copied().chain(le.map(|le| ("le", le)));
        let mut open = '{';
        for (name, value) in all {
            self.text.push(open);
            open = ',';
            let _ = write!(self.text, "{name}=\"");
            for c in value.chars() {
                match c {
                    '\\' => self.text.push_str("\\\\"),
                    '"' => self.text.push_str("\\\""),
                    '\n' => self.text.push_str("\\n"),
                    c => self.text.push(c),
                }
            }
            self.text.push('"');
        }
        if open == ',' {
            self.text.push('}');
        }
    }
}

//! One line on a terminal that says how far a quantization is; nothing where stderr is no terminal. Knows no checkpoint.

use std::io::{IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

use millrace_model::quantize::Progress;

/// Between two states of the line.
const EVERY: Duration = Duration::from_millis(100);
/// Terminals are rarely narrower.
const WIDTH: usize = 79;
const BAR: usize = 24;

pub(crate) struct Line {
    began: Instant,
    /// None where nobody looks.
    shown: Option<Option<Instant>>,
}

impl Line {
    pub(crate) fn new() -> Self {
        Self { began: Instant::now(), shown: std::io::stderr().is_terminal().then_some(None) }
    }

    pub(crate) fn show(&mut self, progress: Progress<'_>) {
        let Some(last) = self.shown else { return };
        if last.is_some_and(|at| at.elapsed() < EVERY) {
            return;
        }
        self.shown = Some(Some(Instant::now()));
        put(&format!("\r{:<WIDTH$}", text(progress, self.began.elapsed())));
    }

    /// Leaves an empty line to whatever is printed next.
    pub(crate) fn clear(&self) {
        if matches!(self.shown, Some(Some(_))) {
            put(&format!("\r{:<WIDTH$}\r", ""));
        }
    }
}

/// A terminal that went away is no reason to stop.
fn put(text: &str) {
    let mut stderr = std::io::stderr();
    _ = stderr.write_all(text.as_bytes()).and_then(|()| stderr.flush());
}

fn text(progress: Progress<'_>, elapsed: Duration) -> String {
    #[expect(clippy::cast_precision_loss, reason = "for people to look at")]
    let share = if progress.total_bytes == 0 { 1.0 } else { progress.done_bytes as f64 / progress.total_bytes as f64 };
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to BAR")]
    let filled = (share.clamp(0.0, 1.0) * BAR as f64) as usize;
    let bar: String = (0..BAR).map(|i| if i < filled { '#' } else { '.' }).collect();
    let left = if share > 0.01 { clock(elapsed.as_secs_f64() * (1.0 / share - 1.0)) } else { "--:--".to_owned() };
    let line = format!("[{bar}] {:3.0} %  {left} left  {}", share * 100.0, progress.tensor);
    line.chars().take(WIDTH).collect()
}

/// `1:02:03` or `02:03`.
fn clock(seconds: f64) -> String {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates")]
    let seconds = seconds.max(0.0) as u64;
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    if hours > 0 { format!("{hours}:{minutes:02}:{seconds:02}") } else { format!("{minutes:02}:{seconds:02}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_fits_a_terminal_and_says_what_is_left() {
        let progress = Progress {
            done_bytes: 25,
            total_bytes: 100,
            tensor: "language_model.model.layers.17.mlp.experts.101.down_proj.weight",
        };
        let line = text(progress, Duration::from_secs(40));
        assert!(line.starts_with("[######..................]  25 %  02:00 left  language_model."), "{line}");
        assert_eq!(line.len(), WIDTH);
        let nothing = Progress { done_bytes: 0, total_bytes: 0, tensor: "" };
        assert!(text(nothing, Duration::ZERO).contains("100 %"));
        let start = Progress { done_bytes: 0, total_bytes: 9, tensor: "" };
        assert!(text(start, Duration::from_secs(9)).contains("  0 %  --:-- left"));
        assert_eq!(clock(3723.9), "1:02:03");
    }
}

//! `millrace:policy/log`: lines into the host's log, at a bounded rate and length.

use super::GuestContext;
use super::bindings::millrace::policy::log::{Host, Level};

const MAX_LINE_BYTES: usize = 1_024;

impl Host for GuestContext {
    fn log(&mut self, level: Level, message: String) {
        let Some(dropped) = self.belongings.pass_line(self.now_us, self.limits.log_lines_per_second) else { return };
        let (policy, line) = (&*self.name, one_line(&message));
        match level {
            Level::Debug => tracing::debug!(target: "millrace::policy", policy, dropped, "{line}"),
            Level::Info => tracing::info!(target: "millrace::policy", policy, dropped, "{line}"),
            Level::Warn => tracing::warn!(target: "millrace::policy", policy, dropped, "{line}"),
            Level::Error => tracing::error!(target: "millrace::policy", policy, dropped, "{line}"),
        }
    }
}

/// Cut, and without characters that could forge further lines or drive a terminal.
fn one_line(message: &str) -> String {
    let cut = &message[..message.floor_char_boundary(MAX_LINE_BYTES)];
    cut.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_cut_at_characters_and_cleaned() {
        assert_eq!(one_line("a\nb\u{1b}[31mc"), "a b [31mc");
        assert_eq!(one_line(&"é".repeat(1_000)), "é".repeat(512));
        assert_eq!(one_line(&format!("x{}", "é".repeat(1_000))).len(), 1_023);
    }
}

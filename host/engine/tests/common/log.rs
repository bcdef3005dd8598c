//! Warnings and errors in the log of a test process, one line each.

use std::fmt::{Debug, Write};
use std::sync::{Mutex, Once};

use tracing::field::{Field, Visit};

static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());

struct Log;

impl tracing::Subscriber for Log {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::WARN
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        let mut line = Line(format!("{} ", event.metadata().level()));
        event.record(&mut line);
        LINES.lock().unwrap().push(line.0);
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        write!(self.0, "{field}={value:?} ").unwrap();
    }
}

/// Begins to listen, where nobody did.
pub(crate) fn listen() {
    static LOG: Once = Once::new();
    LOG.call_once(|| tracing::subscriber::set_global_default(Log).unwrap());
}

/// Lines so far that have all of these words.
pub(crate) fn lines(words: &[&str]) -> usize {
    LINES.lock().unwrap().iter().filter(|line| words.iter().all(|word| line.contains(word))).count()
}

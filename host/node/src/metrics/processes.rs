//! Engine processes and the connections between them. Families without a process have no samples.

use millrace_engine::LinkFacts;

use crate::fleet::ProcessFacts;

use super::exposition::{Exposition, Labels};

/// Reads one number of a process.
type LifeOf = fn(&ProcessFacts) -> f64;

/// Reads one number of a link.
type NumberOf = fn(&LinkFacts) -> f64;

/// Both ends of a lane tell of it; `end` is what they do with pages.
pub(super) fn links(out: &mut Exposition, links: &[LinkFacts]) {
    let families: [(&str, &str, &str, NumberOf); 7] = [
        ("millrace_link_connected", "gauge", "1 while an engine process is connected to the other of its lane.", |l| {
            f64::from(u8::from(l.connected))
        }),
        ("millrace_link_transfers", "gauge", "Sequences on their way between two engine processes.", |l| l.open as f64),
        ("millrace_link_pages_total", "counter", "Pages sent, or landed.", |l| l.pages as f64),
        ("millrace_link_sent_bytes_total", "counter", "Bytes sent to the other engine process.", |l| l.sent_bytes as f64),
        ("millrace_link_received_bytes_total", "counter", "Bytes received from the other engine process.", |l| {
            l.received_bytes as f64
        }),
        ("millrace_link_connections_total", "counter", "How often the connection was made.", |l| l.connections as f64),
        (
            "millrace_link_stale_messages_total",
            "counter",
            "Messages of another life of the peer, or for pages no longer reserved.",
            |l| l.stale_messages as f64,
        ),
    ];
    for (name, kind, help, value) in families {
        out.family(name, kind, help);
        for link in links {
            out.sample(name, &[("lane", &link.lane), ("end", link.end)], value(link));
        }
    }
}

pub(super) fn lives(out: &mut Exposition, processes: &[ProcessFacts]) {
    let families: [(&str, &str, &str, LifeOf); 3] = [
        ("millrace_engine_process_up", "gauge", "1 while the engine process is loaded and answers.", |p| {
            f64::from(u8::from(p.up))
        }),
        ("millrace_engine_process_starts_total", "counter", "How often the engine process was started.", |p| p.starts as f64),
        ("millrace_engine_process_pid", "gauge", "Process id; 0 while there is none.", |p| f64::from(p.pid.unwrap_or(0))),
    ];
    for (name, kind, help, value) in families {
        out.family(name, kind, help);
        for process in processes {
            let stage = process.stage.to_string();
            let labels: Labels<'_> = &[("pool", &process.pool), ("stage", &stage)];
            out.sample(name, labels, value(process));
        }
    }
}

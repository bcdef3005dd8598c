//! How many files the process may have open, and how many connections that leaves. Knows no sockets.
//!
//! A process that has run out of files accepts no connection at all, so a bound on connections holds only where the files suffice.

use millrace_api::SPARE_CONNECTIONS;

/// For checkpoints, components, logs, listeners and the runtime.
const OTHER_FILES: u64 = 64;

/// Raises the limit as far as needed and allowed, and gives the greatest `max_connections` for which it suffices.
pub(crate) fn fitting(max_connections: u32, max_admin_connections: u32) -> u32 {
    let beside = u64::from(max_admin_connections) + 2 * SPARE_CONNECTIONS as u64 + OTHER_FILES;
    let needed = u64::from(max_connections) + beside;
    // Where the limit cannot be known it is not in the way.
    let limit = rlimit::increase_nofile_limit(needed).unwrap_or(needed);
    let fits = left(max_connections, beside, limit);
    if fits < max_connections {
        tracing::warn!(
            "this process may have {limit} files open, so it takes {fits} connections at a time instead of server.max_connections = \
             {max_connections}; raise the hard limit (ulimit -Hn, LimitNOFILE) to {needed}"
        );
    }
    fits
}

/// At least one connection; `beside` is what the limit has to suffice for before.
fn left(max_connections: u32, beside: u64, limit: u64) -> u32 {
    let fits = limit.saturating_sub(beside).clamp(1, u64::from(u32::MAX));
    u32::try_from(fits).unwrap_or(u32::MAX).min(max_connections)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_give_way_to_files() {
        assert_eq!(left(1024, 160, 1184), 1024);
        assert_eq!(left(1024, 160, 1183), 1023);
        assert_eq!(left(1024, 160, 100), 1);
        assert_eq!(left(1024, 160, u64::MAX), 1024);
    }
}

//! The memory of this process: how much it has held, and how much is left for it. Reads `/proc` and the cgroup.

use std::fs::read_to_string;

/// Largest resident set of this process so far; 0 where the system does not say.
pub(super) fn peak_rss_bytes() -> u64 {
    kibibytes(&read_to_string("/proc/self/status").unwrap_or_default(), "VmHWM:").unwrap_or(0)
}

/// What the system and the cgroup leave; `None` where neither says.
pub(super) fn available_bytes() -> Option<u64> {
    let system = read_to_string("/proc/meminfo").ok().and_then(|text| kibibytes(&text, "MemAvailable:"));
    let bytes = |file: &str| read_to_string(format!("/sys/fs/cgroup/{file}")).ok()?.trim().parse::<u64>().ok();
    let group = bytes("memory.max").zip(bytes("memory.current")).map(|(most, now)| most.saturating_sub(now));
    system.into_iter().chain(group).min()
}

/// The number behind `name` in lines such as `VmHWM:   1024 kB`, in bytes.
fn kibibytes(text: &str, name: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
    rest.trim().trim_end_matches("kB").trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_tells_what_is_held_and_left() {
        assert_eq!(kibibytes("A: 1 kB\nVmHWM:\t   12 kB\n", "VmHWM:"), Some(12 << 10));
        assert_eq!(kibibytes("VmHWM: x kB", "VmHWM:"), None);
        assert!(peak_rss_bytes() > 1 << 20);
        assert!(available_bytes().is_some_and(|bytes| bytes > 1 << 20));
    }
}

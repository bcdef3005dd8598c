//! How many threads this process may use: cores, affinity and cgroup CPU quotas. Knows no pool.

use std::fs;
use std::path::{Path, PathBuf};

/// Threads that can run at once: the smallest of the cores that this process may run on and its cgroups' CPU quotas, rounded
/// up; at least 1.
pub fn available_threads() -> usize {
    let cores = affinity_cores().or_else(|| std::thread::available_parallelism().ok().map(usize::from)).unwrap_or(1);
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    cgroup_quota(Path::new("/sys/fs/cgroup"), &groups).map_or(cores, |quota| cores.min(quota)).max(1)
}

fn affinity_cores() -> Option<usize> {
    // SAFETY: a `cpu_set_t` of zeros is an empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set is writable and its size is given; 0 is this thread.
    let status = unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut set) };
    // SAFETY: the set was filled by the call.
    let count = unsafe { libc::CPU_COUNT(&set) };
    (status == 0).then(|| usize::try_from(count).ok()).flatten().filter(|count| *count > 0)
}

/// The smallest quota of the groups that `groups` (as in `/proc/self/cgroup`) names, and of their parents.
fn cgroup_quota(root: &Path, groups: &str) -> Option<usize> {
    let mut quotas = Vec::new();
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
        let relative = path.trim_start_matches('/');
        if controllers.is_empty() {
            quotas.extend(ancestors(root, relative).filter_map(|group| quota_v2(&group)));
        } else if controllers.split(',').any(|controller| controller == "cpu") {
            let mounts = [root.join(controllers), root.join("cpu")];
            quotas.extend(mounts.iter().flat_map(|mount| ancestors(mount, relative)).filter_map(|group| quota_v1(&group)));
        }
    }
    quotas.into_iter().min()
}

/// `root/relative` and its parents up to `root`.
fn ancestors(root: &Path, relative: &str) -> impl Iterator<Item = PathBuf> {
    let path = root.join(relative);
    let depth = Path::new(relative).components().count();
    path.ancestors().take(depth + 1).map(Path::to_path_buf).collect::<Vec<_>>().into_iter()
}

/// `cpu.max` of cgroup v2: `QUOTA PERIOD` in microseconds, or `max PERIOD`.
fn quota_v2(group: &Path) -> Option<usize> {
    let text = fs::read_to_string(group.join("cpu.max")).ok()?;
    let mut words = text.split_whitespace();
    cores_of(words.next()?.parse().ok()?, words.next()?.parse().ok()?)
}

/// `cpu.cfs_quota_us` (-1: none) and `cpu.cfs_period_us` of cgroup v1.
fn quota_v1(group: &Path) -> Option<usize> {
    let number = |file: &str| fs::read_to_string(group.join(file)).ok()?.trim().parse().ok();
    cores_of(number("cpu.cfs_quota_us")?, number("cpu.cfs_period_us")?)
}

fn cores_of(quota_us: i64, period_us: i64) -> Option<usize> {
    let (quota, period) = (u64::try_from(quota_us).ok()?, u64::try_from(period_us).ok()?);
    (quota > 0 && period > 0).then(|| usize::try_from(quota.div_ceil(period)).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(root: &Path, path: &str, files: &[(&str, &str)]) {
        fs::create_dir_all(root.join(path)).unwrap();
        for (name, text) in files {
            fs::write(root.join(path).join(name), text).unwrap();
        }
    }

    #[test]
    fn quotas_of_groups_and_their_parents_count() {
        let root = std::env::temp_dir().join(format!("millrace-cgroup-{}", std::process::id()));
        group(&root, "a/b", &[("cpu.max", "max 100000\n")]);
        group(&root, "a", &[("cpu.max", "250000 100000\n")]);
        group(&root, "cpu,cpuacct/x", &[("cpu.cfs_quota_us", "150000\n"), ("cpu.cfs_period_us", "100000\n")]);
        group(&root, "cpu,cpuacct", &[("cpu.cfs_quota_us", "-1\n"), ("cpu.cfs_period_us", "100000\n")]);
        assert_eq!(cgroup_quota(&root, "0::/a/b\n"), Some(3));
        assert_eq!(cgroup_quota(&root, "4:cpu,cpuacct:/x\n3:memory:/y\n"), Some(2));
        assert_eq!(cgroup_quota(&root, "0::/none\nnonsense\n"), None);
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn at_least_one_and_no_more_than_the_cores() {
        let threads = available_threads();
        assert!(threads >= 1);
        assert!(threads <= affinity_cores().unwrap_or(usize::MAX));
    }
}

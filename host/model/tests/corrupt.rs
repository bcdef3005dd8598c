//! Files that lie: every mutation gives a checkpoint or a typed error, never a panic or a large allocation.
//! One test alone, because it watches the memory of its process.

mod common;

use std::path::Path;

use common::gguf;
use common::{Lcg, fixture};
use millrace_cpu::{CpuBackend, CpuCompute, CpuOptions};

/// Far above what the small files need, far below what their lies ask for.
const MEMORY_BOUND: u64 = 400 << 20;

#[test]
fn no_mutation_panics_or_allocates_by_a_lie() {
    let options = CpuOptions { threads: 1, compute: CpuCompute::Reference, isa: None };
    let backend = CpuBackend::new(options).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let before = peak_virtual_memory();
    let good = gguf::small_llama().bytes();
    let path = directory.path().join("model.gguf");
    assert!(exercise(&path, &good, &backend), "the unspoilt file loads");
    mutate(&good, &path, &backend);

    let hub = directory.path().join("hub");
    std::fs::create_dir(&hub).unwrap();
    for name in ["llama-int4", "llama-fp8"] {
        std::fs::copy(fixture(name).join("config.json"), hub.join("config.json")).unwrap();
        let good = std::fs::read(fixture(name).join("model.safetensors")).unwrap();
        std::fs::write(hub.join("model.safetensors"), &good).unwrap();
        assert!(survey(&hub, None));
        mutate_header(&good, &hub);
    }
    let config = std::fs::read(fixture("llama-bf16").join("config.json")).unwrap();
    std::fs::copy(fixture("llama-bf16").join("model.safetensors"), hub.join("model.safetensors")).unwrap();
    mutate_config(&config, &hub, &backend);
    if let (Some(before), Some(after)) = (before, peak_virtual_memory()) {
        assert!(after - before < MEMORY_BOUND, "peak grew by {} bytes", after - before);
    }
}

/// Every truncation of the header, and flipped bytes everywhere; a flipped file that still opens is run to its logits' end.
fn mutate(good: &[u8], path: &Path, backend: &CpuBackend) {
    for length in 0..good.len().min(2600) {
        exercise(path, &good[..length], backend);
    }
    let mut lcg = Lcg(7);
    for round in 0..3000 {
        let mut bytes = good.to_vec();
        // Most of what can go wrong is in the header.
        let limit = if round % 4 == 0 { bytes.len() } else { 2200 };
        for _ in 0..1 + lcg.below(3) {
            let at = lcg.below(limit);
            bytes[at] = match lcg.below(4) {
                0 => 0xff,
                1 => 0,
                2 => bytes[at] ^ (1 << lcg.below(8)),
                _ => lcg.next() as u8,
            };
        }
        if round % 5 == 0 {
            bytes.truncate(lcg.below(bytes.len()));
        }
        exercise(path, &bytes, backend);
    }
    // Every eight bytes of the header as one of the numbers that overflow something.
    let numbers = [u64::MAX, 1 << 63, (1 << 63) - 1, 1 << 61, 1 << 32, 1 << 26];
    for at in 0..2200 {
        for value in [numbers[at % 6], numbers[(at + 3) % 6]] {
            let mut bytes = good.to_vec();
            bytes[at..at + 8].copy_from_slice(&u64::to_le_bytes(value));
            exercise(path, &bytes, backend);
        }
    }
}

fn mutate_header(good: &[u8], hub: &Path) {
    let path = hub.join("model.safetensors");
    let header = u64::from_le_bytes(good[..8].try_into().unwrap()) as usize;
    let mut lcg = Lcg(11);
    for round in 0..1500 {
        let mut bytes = good.to_vec();
        for _ in 0..1 + lcg.below(2) {
            let at = lcg.below(8 + header);
            // Digits stay digits half of the time, so that the JSON stays whole and its numbers lie.
            bytes[at] = if round % 2 == 0 && bytes[at].is_ascii_digit() { b'0' + lcg.below(10) as u8 } else { lcg.next() as u8 };
        }
        if round % 7 == 0 {
            bytes.truncate(lcg.below(bytes.len()));
        }
        std::fs::write(&path, &bytes).unwrap();
        survey(hub, None);
    }
}

fn mutate_config(good: &[u8], hub: &Path, backend: &CpuBackend) {
    let mut lcg = Lcg(13);
    for round in 0..1500 {
        let mut bytes = good.to_vec();
        let at = lcg.below(bytes.len());
        bytes[at] = if bytes[at].is_ascii_digit() { b'0' + lcg.below(10) as u8 } else { b' ' + lcg.below(95) as u8 };
        if round % 9 == 0 {
            bytes.truncate(lcg.below(bytes.len()));
        }
        std::fs::write(hub.join("config.json"), &bytes).unwrap();
        survey(hub, Some(backend));
    }
}

fn exercise(path: &Path, bytes: &[u8], backend: &CpuBackend) -> bool {
    std::fs::write(path, bytes).unwrap();
    survey(path, Some(backend))
}

/// Whether everything that can be done with a checkpoint worked.
fn survey(path: &Path, backend: Option<&CpuBackend>) -> bool {
    let errors = common::survey::survey(path, backend);
    assert!(errors.iter().all(|error| !error.is_empty()));
    errors.is_empty()
}

/// Reserved address space at its highest, where the system tells: an allocation by a lie shows here even if never touched.
fn peak_virtual_memory() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmPeak:"))?;
    Some(line.split_whitespace().nth(1)?.parse::<u64>().ok()? << 10)
}

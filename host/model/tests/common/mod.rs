//! Shared by the integration tests: fixtures, comparison of logits, and writers of small checkpoints.
#![allow(dead_code, reason = "each test file uses a part")]

use std::path::{Path, PathBuf};

use millrace_cpu::{CpuBackend, CpuCompute, CpuOptions};

pub(crate) mod gguf;
pub(crate) mod hub;
pub(crate) mod survey;

/// A checkpoint of `tests/data`.
pub(crate) fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

/// SmolLM2-135M-Instruct as a Q4_1 GGUF, which `tests/run.sh` fetches; `MILLRACE_SMOLLM2` names another place.
pub(crate) fn smollm2() -> millrace_model::Checkpoint {
    let path = std::env::var_os("MILLRACE_SMOLLM2").map_or_else(
        || {
            let home = PathBuf::from(std::env::var_os("HOME").unwrap_or_default());
            home.join(".cache/millrace/SmolLM2-135M-Instruct.Q4_1.gguf")
        },
        PathBuf::from,
    );
    assert!(path.exists(), "{} is missing: run tests/run.sh, or point MILLRACE_SMOLLM2 at the GGUF file", path.display());
    millrace_model::Checkpoint::open(&path).unwrap()
}

/// Every checkpoint of `tests/data`, and of the directory that `MILLRACE_FIXTURES` names, if it is set.
pub(crate) fn fixtures() -> Vec<PathBuf> {
    let mut found = Vec::new();
    for folder in [Some(fixture("")), std::env::var_os("MILLRACE_FIXTURES").map(PathBuf::from)].into_iter().flatten() {
        let entries = std::fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
        found.extend(entries.map(|entry| entry.unwrap().path()).filter(|path| path.join("expected.safetensors").exists()));
    }
    found.sort();
    assert!(found.len() >= 14, "tests/data lacks checkpoints: {found:?}");
    found
}

/// The last part of a path, for messages.
pub(crate) fn name(path: &Path) -> String {
    path.file_name().unwrap().to_string_lossy().into_owned()
}

/// What HF transformers computed in f32 on the fixture's weights.
pub(crate) struct Expected {
    pub(crate) ids: Vec<u32>,
    /// `[ids.len(), vocab]`.
    pub(crate) logits: Vec<f32>,
    pub(crate) greedy: Vec<u32>,
    /// `logits` with what the cache holds rounded to BF16 and to FP8, where the fixture has them.
    pub(crate) rounded: Option<[Vec<f32>; 2]>,
}

pub(crate) fn expected(path: &Path) -> Expected {
    let bytes = std::fs::read(path.join("expected.safetensors")).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let ids = |name: &str| {
        let view = tensors.tensor(name).unwrap();
        view.data().chunks_exact(8).map(|b| i64::from_le_bytes(b.try_into().unwrap()) as u32).collect()
    };
    let reals = |name: &str| -> Option<Vec<f32>> {
        let data = tensors.tensor(name).ok()?.data();
        Some(data.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect())
    };
    let rounded = reals("logits_kv_bf16").zip(reals("logits_kv_fp8")).map(|(bf16, fp8)| [bf16, fp8]);
    Expected { ids: ids("ids"), logits: reals("logits").unwrap(), greedy: ids("greedy"), rounded }
}

pub(crate) fn cpu(compute: CpuCompute) -> CpuBackend {
    CpuBackend::new(CpuOptions { threads: 2, compute, isa: None }).unwrap()
}

/// `||out - reference|| / ||reference||`.
pub(crate) fn distance(out: &[f32], reference: &[f32]) -> f64 {
    assert_eq!(out.len(), reference.len());
    let square = |v: f64| v * v;
    let difference: f64 = out.iter().zip(reference).map(|(a, b)| square(f64::from(*a) - f64::from(*b))).sum();
    let size: f64 = reference.iter().map(|b| square(f64::from(*b))).sum();
    (difference / size).sqrt()
}

/// [`distance`] of each position, ascending.
pub(crate) fn distances(out: &[f32], reference: &[f32], vocab: usize) -> Vec<f64> {
    let mut each: Vec<f64> = out.chunks(vocab).zip(reference.chunks(vocab)).map(|(a, b)| distance(a, b)).collect();
    each.sort_by(f64::total_cmp);
    each
}

/// Median of [`distances`].
pub(crate) fn median_distance(out: &[f32], reference: &[f32], vocab: usize) -> f64 {
    let each = distances(out, reference, vocab);
    each[each.len() / 2]
}

/// A linear congruential generator (Knuth's MMIX constants), so that every run makes the same cases.
pub(crate) struct Lcg(pub(crate) u64);

impl Lcg {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }

    pub(crate) fn below(&mut self, limit: usize) -> usize {
        self.next() as usize % limit
    }

    /// In -1..1.
    pub(crate) fn real(&mut self) -> f32 {
        self.next() as f32 / (1u64 << 30) as f32 - 1.0
    }
}

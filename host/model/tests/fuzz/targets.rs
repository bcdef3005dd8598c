//! What is fuzzed: one file of a checkpoint each, with small real ones to begin with. Knows how they are laid out on disk.

use std::path::{Path, PathBuf};

use super::common::hub::Hub;
use super::common::{self, fixture, gguf};
use super::mutate::Kind;

/// One file of a checkpoint.
pub(crate) struct Target {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    /// Unspoilt contents.
    pub(crate) seeds: Vec<Vec<u8>>,
    /// Writes the checkpoint's other files; says where the fuzzed one goes.
    pub(crate) place: Box<dyn Fn(&Path) -> PathBuf>,
    /// Whether to prepare the weights too.
    pub(crate) load: bool,
}

pub(crate) fn all() -> Vec<Target> {
    vec![
        gguf_file(),
        index(),
        safetensors("safetensors-int4", "int4-channel"),
        safetensors("safetensors-fp8", "fp8-channel"),
        config("config-int4", "int4-zero-point"),
        config("config-fp8", "autofp8"),
        config("config-mixed", "mixed"),
    ]
}

fn gguf_file() -> Target {
    let mut unaligned = gguf::small_llama();
    unaligned.alignment = 64;
    unaligned.u32("general.alignment", 64);
    Target {
        name: "gguf",
        kind: Kind::Binary,
        seeds: vec![gguf::small_llama().bytes(), unaligned.bytes()],
        place: Box::new(|directory| directory.join("model.gguf")),
        load: true,
    }
}

fn quantized(name: &'static str) -> PathBuf {
    fixture("formats").join(name)
}

fn safetensors(name: &'static str, fixture: &'static str) -> Target {
    Target {
        name,
        kind: Kind::HeadedText,
        seeds: vec![std::fs::read(quantized(fixture).join("model.safetensors")).unwrap()],
        place: Box::new(move |directory| {
            Hub::open(&quantized(fixture)).write_config(directory);
            directory.join("model.safetensors")
        }),
        load: true,
    }
}

fn config(name: &'static str, fixture: &'static str) -> Target {
    Target {
        name,
        kind: Kind::Text,
        seeds: vec![std::fs::read(quantized(fixture).join("config.json")).unwrap()],
        place: Box::new(move |directory| {
            Hub::open(&quantized(fixture)).write(directory);
            directory.join("config.json")
        }),
        load: true,
    }
}

fn index() -> Target {
    let shard = |name: &str| vec![if name.contains("mlp") { "b.safetensors" } else { "a.safetensors" }];
    let place = move |directory: &Path| {
        Hub::open(&common::fixture("formats/fp8-channel")).write_shards(directory, shard);
        directory.join("model.safetensors.index.json")
    };
    let directory = tempfile::tempdir().unwrap();
    let seeds = vec![std::fs::read(place(directory.path())).unwrap()];
    Target { name: "index", kind: Kind::Text, seeds, place: Box::new(place), load: true }
}

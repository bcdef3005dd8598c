//! Hub directories: missing files, indexes, shards, and things that are no files.

use std::path::{Path, PathBuf};

use super::common::hub::Hub;
use super::{Case, common, refuse};

const INDEX: &str = "model.safetensors.index.json";

fn llama(directory: &Path) -> PathBuf {
    Hub::open(&common::fixture("llama-bf16")).write(directory);
    directory.to_path_buf()
}

/// Weights in one.safetensors and this index.
fn index(wrong: &'static str, names: &'static [&'static str], text: impl Fn() -> String + 'static) -> Case {
    Case::new(wrong, names, move |directory| {
        let path = llama(directory);
        std::fs::rename(path.join("model.safetensors"), path.join("one.safetensors")).unwrap();
        std::fs::write(path.join(INDEX), text()).unwrap();
        path
    })
}

/// The fixture in two shards; what `also` names lies in both.
fn shards(wrong: &'static str, names: &'static [&'static str], also: &'static str, spoil: fn(&Path)) -> Case {
    Case::new(wrong, names, move |directory| {
        Hub::open(&common::fixture("llama-bf16")).write_shards(directory, |name| match name {
            name if name == also => vec!["a.safetensors", "b.safetensors"],
            name if name.contains("mlp") => vec!["b.safetensors"],
            _ => vec!["a.safetensors"],
        });
        spoil(directory);
        directory.to_path_buf()
    })
}

#[test]
fn files_that_are_missing() {
    let without = |wrong, names, file: &'static str| {
        Case::new(wrong, names, move |directory| {
            let path = llama(directory);
            std::fs::remove_file(path.join(file)).unwrap();
            path
        })
    };
    refuse(vec![
        without("no weights", &["neither model.safetensors nor model.safetensors.index.json"], "model.safetensors"),
        without("no config", &["a directory without config.json"], "config.json"),
        Case::new("nothing at all", &["cannot be read", "check the path"], |directory| directory.join("absent")),
        shards(
            "a shard that is missing",
            &["b.safetensors: missing", "model.safetensors.index.json names it"],
            "",
            |directory| {
                std::fs::remove_file(directory.join("b.safetensors")).unwrap();
            },
        ),
    ]);
}

#[test]
fn indexes() {
    let plain = |text: &'static str| move || text.to_owned();
    let outside: &[&str] = &["model.safetensors.index.json", "`a`", "no file name of this directory"];
    refuse(vec![
        index("an index that is no JSON", &["index"], plain("{")),
        index("an index nested ten thousand deep", &["index", "recursion limit"], || {
            format!(r#"{{"weight_map":{}"#, "[".repeat(10_000))
        }),
        index("an index without its map", &["it has no object `weight_map`"], plain("{}")),
        index("a map that is a list", &["it has no object `weight_map`"], plain(r#"{"weight_map":[]}"#)),
        index("an index of no files", &["names 0 files"], plain(r#"{"weight_map":{}}"#)),
        index("an index of five thousand files", &["names 5000 files, not 1 to 4096"], || {
            let map: Vec<String> = (0..5000).map(|i| format!(r#""t{i}":"f{i}""#)).collect();
            format!(r#"{{"weight_map":{{{}}}}}"#, map.join(","))
        }),
        index("a file outside the directory", outside, plain(r#"{"weight_map":{"a":"../config.json"}}"#)),
        index("a file of the system", outside, plain(r#"{"weight_map":{"a":"/etc/passwd"}}"#)),
        index("the parent directory", outside, plain(r#"{"weight_map":{"a":".."}}"#)),
        index("a number for a file", outside, plain(r#"{"weight_map":{"a":3}}"#)),
        index("a file that is not there", &["gone.safetensors: missing"], plain(r#"{"weight_map":{"a":"gone.safetensors"}}"#)),
        index(
            "a tensor that its file does not hold",
            &["one.safetensors", "tensor `a` is not in the file that model.safetensors.index.json names for it"],
            plain(r#"{"weight_map":{"a":"one.safetensors"}}"#),
        ),
        index("an index that lists a part of the tensors", &["no tensor `model.embed_tokens.weight`"], || {
            r#"{"weight_map":{"model.norm.weight":"one.safetensors"}}"#.to_owned()
        }),
    ]);
}

#[test]
fn shards_that_disagree() {
    refuse(vec![
        shards(
            "a tensor in two shards",
            &["b.safetensors", "tensor `model.norm.weight` is here and", "in a.safetensors"],
            "model.norm.weight",
            |_| {},
        ),
        shards("a shard cut short", &["b.safetensors", "tensor `model.layers.", "the file holds"], "", |directory| {
            let path = directory.join("b.safetensors");
            let bytes = std::fs::read(&path).unwrap();
            std::fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
        }),
        shards("a shard that is a web page", &["b.safetensors", "safetensors header"], "", |directory| {
            std::fs::write(directory.join("b.safetensors"), "<!DOCTYPE html><html>not found</html>").unwrap();
        }),
        shards("a shard that points to large storage", &["b.safetensors", "safetensors header"], "", |directory| {
            std::fs::write(directory.join("b.safetensors"), "version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
                .unwrap();
        }),
    ]);
}

#[test]
fn things_that_are_no_files() {
    let made = |wrong, names, make: fn(&Path) -> PathBuf| Case::new(wrong, names, make);
    refuse(vec![
        Case::new("a device", &["neither a regular file"], |_| PathBuf::from("/dev/zero")),
        made("a config that is a directory", &["config.json: a directory where a file is expected"], |directory| {
            let path = llama(directory);
            std::fs::remove_file(path.join("config.json")).unwrap();
            std::fs::create_dir(path.join("config.json")).unwrap();
            path
        }),
        made("a safetensors file alone", &["a safetensors file alone; give its directory"], |directory| {
            llama(directory).join("model.safetensors")
        }),
        made("a pipe", &["neither a regular file"], |directory| {
            let fifo = directory.join("fifo");
            assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
            fifo
        }),
    ]);
}

#[test]
fn configs_that_are_no_configs() {
    let config = |wrong, names, text: fn() -> Vec<u8>| {
        Case::new(wrong, names, move |directory| {
            let path = llama(directory);
            std::fs::write(path.join("config.json"), text()).unwrap();
            path
        })
    };
    refuse(vec![
        config("a config of no bytes", &["config.json", "JSON object"], Vec::new),
        config("a config that is a list", &["config.json", "JSON object"], || b"[]".to_vec()),
        config("a config that is no UTF-8", &["config.json", "no UTF-8"], || vec![0xff; 4]),
        config("a config without architecture", &["config.json", "`architectures` names no model class"], || b"{}".to_vec()),
        config("a config nested ten thousand deep", &["config.json", "recursion limit"], || br#"{"a":"#.repeat(10_000)),
        config("a config of 16 MiB", &["config.json", "longer than the 16777216 bytes allowed"], || vec![b' '; (16 << 20) + 1]),
    ]);
}

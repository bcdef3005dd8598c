//! Sources, destinations and reports that lie in each other, and reports that cannot be written: refused before any work.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use millrace_model::quantize::{QuantizeError, QuantizeOptions};
use serde_json::Value;

use crate::common::fixture;
use crate::{FP8, Stored, Tensors, options, run, write};

/// A directory that holds a checkpoint named `source`.
fn with_source() -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let source = directory.path().join("source");
    let tensors = Tensors::from([("model.layers.0.mlp.up_proj.weight".to_owned(), Stored::bf16(&[4, 64], &[0.5; 256]))]);
    write(&source, &serde_json::json!({ "model_type": "llama" }), &tensors);
    (directory, source)
}

fn refused(source: &Path, destination: &Path, report: Option<PathBuf>) -> String {
    let error = run(source, destination, &QuantizeOptions { report, ..options(FP8) }).unwrap_err();
    assert!(matches!(error, QuantizeError::Place { .. } | QuantizeError::ReportFile { .. }), "{error:?}");
    error.to_string()
}

fn names(directory: &Path) -> Vec<String> {
    let names = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

#[test]
fn a_destination_in_around_or_on_the_source_is_refused() {
    let (directory, source) = with_source();
    let at = |name: &str| directory.path().join(name);
    symlink(&source, at("link")).unwrap();
    symlink(directory.path(), at("up")).unwrap();
    symlink(source.join("new"), at("dangling")).unwrap();
    std::fs::create_dir_all(at("outer/inner")).unwrap();
    let inner = at("outer/inner");
    for name in ["config.json", "model.safetensors"] {
        std::fs::copy(source.join(name), inner.join(name)).unwrap();
    }
    let cases = [
        (source.clone(), source.clone(), "is the source itself"),
        (source.clone(), at("link"), "is the source itself"),
        (at("link"), source.clone(), "is the source itself"),
        (source.clone(), at("up/source"), "is the source itself"),
        (source.clone(), source.join("new"), "lies in the source"),
        (source.clone(), source.join("sub/../new"), "lies in the source"),
        (source.clone(), at("link/new"), "lies in the source"),
        (at("up/link"), at("source/new"), "lies in the source"),
        (source.clone(), at("dangling"), "lies in the source"),
        (inner.clone(), at("outer"), "holds the source"),
        (inner.clone(), at("up/outer"), "holds the source"),
    ];
    for (from, to, why) in cases {
        let message = refused(&from, &to, None);
        let wanted = format!("destination {}: {why}; name a new directory beside it", to.display());
        assert_eq!(message, wanted);
    }
    assert_eq!(names(directory.path()), ["dangling", "link", "outer", "source", "up"]);
    assert_eq!(names(&source), ["config.json", "model.safetensors"]);
    // What is unfinished has a name of its own, which a source may have too.
    std::fs::rename(&source, at("x.partial")).unwrap();
    assert!(refused(&at("x.partial"), &at("x"), None).contains("is the source itself"));
    assert!(at("x.partial/config.json").exists());
    // Names that only begin alike are apart.
    run(&at("x.partial"), &at("x.part"), &options(FP8)).unwrap();
}

#[test]
fn a_report_in_the_way_or_out_of_reach_is_refused() {
    let (directory, source) = with_source();
    let at = |name: &str| directory.path().join(name);
    symlink(&source, at("link")).unwrap();
    let cases = [
        ("nowhere/report.json", "cannot be written: No such file or directory"),
        ("source/config.json", "lies in the source"),
        ("link/report.json", "lies in the source"),
        ("out/report.json", "lies in the directory that is made"),
        ("out", "lies in the directory that is made"),
        ("out.partial/x", "lies in the directory that is made"),
        ("link", "lies in the source"),
        (".", "cannot be written: Is a directory"),
    ];
    for (report, why) in cases {
        let message = refused(&source, &at("out"), Some(at(report)));
        assert!(message.starts_with("report ") && message.contains(why), "{report}: {message}");
    }
    assert_eq!(names(directory.path()), ["link", "source"]);
    assert_eq!(names(&source), ["config.json", "model.safetensors"]);
}

#[test]
fn a_report_is_written_after_the_work_and_only_then() {
    let (directory, source) = with_source();
    let at = |name: &str| directory.path().join(name);
    let with = |report: &str, keep: &[&str]| {
        let keep = keep.iter().map(|pattern| (*pattern).to_owned()).collect();
        run(&source, &at("out"), &QuantizeOptions { report: Some(at(report)), keep, ..options(FP8) })
    };
    std::fs::write(at("old.json"), "an older report, longer than the new one".repeat(100)).unwrap();
    for report in ["new.json", "old.json"] {
        let error = with(report, &["proj"]).unwrap_err();
        assert!(matches!(error, QuantizeError::Nothing { .. }), "{error}");
    }
    assert!(!at("new.json").exists(), "there is nothing to report");
    assert!(std::fs::read_to_string(at("old.json")).unwrap().starts_with("an older report"));
    for report in ["new.json", "old.json"] {
        let wanted = with(report, &[]).unwrap();
        let written: Value = serde_json::from_slice(&std::fs::read(at(report)).unwrap()).unwrap();
        assert_eq!(written["tensors"].as_array().unwrap().len(), wanted.tensors.len());
        std::fs::remove_dir_all(at("out")).unwrap();
    }
}

#[test]
fn paths_without_a_folder_are_relative_to_here() {
    let error = run(&fixture("llama-bf16"), Path::new("tests"), &options(FP8)).unwrap_err().to_string();
    assert!(error.starts_with("destination tests: holds the source"), "{error}");
}

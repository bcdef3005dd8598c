//! The house rules as tests: layering, sizes, names, fences. Each test lists everything that breaks its rule. Reads the text of the
//! repository's files and manifests; compiles and runs nothing.

mod features;
mod fences;
mod functions;
mod layers;
mod lexer;
mod manifests;
mod repo;
mod shape;
mod words;

/// Fails with all violations of a rule, one a line.
#[track_caller]
fn expect_none(rule: &str, violations: &[String]) {
    assert!(violations.is_empty(), "{rule} ({} broken)\n  {}\n", violations.len(), violations.join("\n  "));
}

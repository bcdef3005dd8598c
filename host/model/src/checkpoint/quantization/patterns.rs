//! Lists of modules in quantization configs: names, regular expressions, module classes. Knows no tensors and no schemes.
//!
//! Two dialects:
//! - compressed-tensors (`targets`, `ignore`): a module's name, `re:` and a regular expression matched from the name's start,
//!   or a module class, of which only `Linear` can be told from a checkpoint: every quantized weight is one.
//!   Source: compressed-tensors 0.20.1, utils/match.py.
//! - transformers (`modules_to_not_convert`, `ignored_layers` of FP8 configs): a module, everything inside a module, a name's
//!   last parts, or a regular expression matched from the start to the end of a part.
//!   Source: transformers 5.24, quantizers/quantizers_utils.py, `should_convert_module`.
//!
//! An expression that only Python reads (look-around) decides nothing; one that nothing reads is an error: transformers and
//! compressed-tensors stop at it too.

use std::collections::BTreeSet;

use regex::bytes::Regex;
use serde_json::Value;

use super::expressions::{self, Expression};
use crate::CheckpointError;
use crate::checkpoint::config::Config;

/// More expressions than any config has; plain names are only bounded by the size of config.json.
const MAX_EXPRESSIONS: usize = 256;
/// Where a part of a name ends.
const PART_END: &str = r"(?:\.|$)";

/// How surely a list holds a module; later ones win.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Match {
    No,
    /// An expression that cannot be read might.
    Perhaps,
    Class,
    Expression,
    Name,
}

/// A list in the dialect of compressed-tensors.
#[derive(Debug, Clone, Default)]
pub(crate) struct Patterns {
    names: BTreeSet<String>,
    expressions: Vec<Regex>,
    every_linear: bool,
    unreadable: bool,
}

impl Patterns {
    /// The list under `key`; empty where there is none.
    ///
    /// # Errors
    /// [`CheckpointError::Config`] where it is no list of strings, or an expression is none, too large or one too many.
    pub(super) fn read(section: &Config, key: &str) -> Result<Self, CheckpointError> {
        let mut patterns = Self::default();
        for text in strings(section, key)? {
            match text.strip_prefix("re:") {
                Some(expression) => match compile(section, key, text, (expression, ""), patterns.expressions.len())? {
                    Some(regex) => patterns.expressions.push(regex),
                    None => patterns.unreadable = true,
                },
                None if text == "Linear" => patterns.every_linear = true,
                None => _ = patterns.names.insert(text.to_owned()),
            }
        }
        Ok(patterns)
    }

    /// The best match of any of a module's spellings.
    pub(super) fn find(&self, spellings: &[String]) -> Match {
        if spellings.iter().any(|module| self.names.contains(module)) {
            Match::Name
        } else if spellings.iter().any(|module| self.expressions.iter().any(|regex| regex.is_match(module.as_bytes()))) {
            Match::Expression
        } else if self.every_linear {
            Match::Class
        } else if self.unreadable {
            Match::Perhaps
        } else {
            Match::No
        }
    }
}

/// A list in the dialect of transformers.
#[derive(Debug, Clone, Default)]
pub(crate) struct Modules {
    names: BTreeSet<String>,
    expressions: Vec<Regex>,
}

impl Modules {
    /// As [`Patterns::read`].
    pub(super) fn read(section: &Config, key: &str) -> Result<Self, CheckpointError> {
        let mut modules = Self::default();
        for text in strings(section, key)? {
            if text.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b)) {
                // A trailing dot says "inside", which a name says anyway.
                modules.names.insert(text.trim_end_matches('.').to_owned());
            } else if let Some(regex) = compile(section, key, text, (text, PART_END), modules.expressions.len())? {
                modules.expressions.push(regex);
            }
        }
        Ok(modules)
    }

    pub(super) fn hold(&self, spellings: &[String]) -> bool {
        spellings.iter().any(|module| {
            let ends = module.match_indices('.').map(|(at, _)| at).chain([module.len()]);
            let starts = [0].into_iter().chain(module.match_indices('.').map(|(at, _)| at.saturating_add(1)));
            ends.filter_map(|end| module.get(..end)).any(|outer| self.names.contains(outer))
                || starts.filter_map(|start| module.get(start..)).any(|tail| self.names.contains(tail))
                || self.expressions.iter().any(|regex| regex.is_match(module.as_bytes()))
        })
    }
}

fn strings<'a>(section: &'a Config, key: &str) -> Result<Vec<&'a str>, CheckpointError> {
    let list = match section.value(key) {
        None => return Ok(Vec::new()),
        Some(Value::Array(list)) => list.iter().map(Value::as_str).collect(),
        Some(_) => None,
    };
    list.ok_or_else(|| section.wrong(key, "is no list of strings"))
}

/// Expression number `count` of a list, spelled there as `entry`; None where only Python reads it.
///
/// # Errors
/// [`CheckpointError::Config`] with the entry where it is no expression, or one too many.
fn compile(
    section: &Config,
    key: &str,
    entry: &str,
    (expression, end): (&str, &str),
    count: usize,
) -> Result<Option<Regex>, CheckpointError> {
    if count >= MAX_EXPRESSIONS {
        return Err(section.wrong(key, format!("holds more than {MAX_EXPRESSIONS} regular expressions")));
    }
    match expressions::compile(expression, end) {
        Ok(Expression::Compiled(regex)) => Ok(Some(regex)),
        Ok(Expression::OnlyPython) => Ok(None),
        Err(why) => {
            let start: String = entry.chars().take(80).collect();
            Err(section.wrong(key, format!("holds `{start}`, which {why}")))
        }
    }
}

/// How a config may spell the module of a stored tensor: as it is stored, and with or without the parts that wrappers of
/// multimodal models put before a text model's names.
pub(super) fn spellings(module: &str) -> Vec<String> {
    let text = module.strip_prefix("language_model.").unwrap_or(module);
    let mut all = vec![module.to_owned()];
    let inner = text.strip_prefix("model.").map(|rest| format!("model.language_model.{rest}"));
    for other in [Some(text.to_owned()), Some(format!("language_model.{text}")), inner].into_iter().flatten() {
        if !all.contains(&other) {
            all.push(other);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn section(list: &str) -> Config {
        Config::from_json(Path::new("config.json"), &format!(r#"{{"model_type":"x","list":{list}}}"#)).unwrap()
    }

    #[test]
    fn names_expressions_and_classes() {
        let patterns = Patterns::read(&section(r#"["lm_head","re:.*self_attn.*","re:mlp$","Linear"]"#), "list").unwrap();
        let find = |module: &str| patterns.find(&spellings(module));
        assert_eq!(find("lm_head"), Match::Name);
        assert_eq!(find("language_model.lm_head"), Match::Name, "without the wrapper's part");
        assert_eq!(find("model.layers.0.self_attn.q_proj"), Match::Expression);
        assert_eq!(find("model.layers.0.mlp"), Match::Class, "`mlp$` is matched from the start");
        assert_eq!(find("mlp"), Match::Expression);
        assert_eq!(Patterns::default().find(&spellings("lm_head")), Match::No);
    }

    /// The `ignore` of Kimi K2.6's config: experts stay, the dense MLP does not.
    #[test]
    fn an_expression_of_a_real_config() {
        let list = r#"["lm_head","re:.*self_attn.*","re:.*shared_experts.*","re:.*mlp\\.(gate|up|gate_up|down)_proj.*"]"#;
        let patterns = Patterns::read(&section(list), "list").unwrap();
        let find = |module: &str| patterns.find(&spellings(module));
        assert_eq!(find("language_model.model.layers.3.mlp.experts.7.gate_proj"), Match::No);
        for kept in ["layers.0.mlp.gate_proj", "layers.3.mlp.shared_experts.up_proj", "layers.3.self_attn.o_proj"] {
            assert_eq!(find(&format!("language_model.model.{kept}")), Match::Expression, "{kept}");
        }
    }

    #[test]
    fn an_expression_with_look_around_decides_nothing() {
        let patterns = Patterns::read(&section(r#"["re:^(?!.*experts).*"]"#), "list").unwrap();
        assert_eq!(patterns.find(&spellings("model.layers.0.mlp.up_proj")), Match::Perhaps);
    }

    #[test]
    fn modules_are_held_whole_from_the_start_or_at_the_end() {
        let list = r#"["model.vision_tower","lm_head","mlp.gate","model.layers.*.eh_proj","layers.61."]"#;
        let modules = Modules::read(&section(list), "list").unwrap();
        let hold = |module: &str| modules.hold(&spellings(module));
        for kept in ["model.vision_tower.blocks.0", "lm_head", "model.layers.3.mlp.gate", "model.layers.9.eh_proj", "layers.61.x"]
        {
            assert!(hold(kept), "{kept}");
        }
        for converted in ["model.layers.3.mlp.gate_proj", "model.vision_tower2", "x.lm_head_2", "layers.6.x", "layers.613.x"] {
            assert!(!hold(converted), "{converted}");
        }
    }

    #[test]
    fn what_is_no_expression_is_named_with_its_key() {
        let wanted = "config.json: config `list` holds `re:[`, which is no regular expression: unclosed character class";
        let error = Patterns::read(&section(r#"["lm_head","re:["]"#), "list").unwrap_err().to_string();
        assert!(error.starts_with(wanted), "{error}");
        let error = Modules::read(&section(r#"["lm_head","mlp.("]"#), "list").unwrap_err().to_string();
        assert!(error.starts_with("config.json: config `list` holds `mlp.(`, which is no regular expression"), "{error}");
    }

    #[test]
    fn lists_are_bounded() {
        let many: Vec<String> = (0..300).map(|i| format!("re:a{i}")).collect();
        let error = Patterns::read(&section(&serde_json::json!(many).to_string()), "list").unwrap_err().to_string();
        assert!(error.contains("more than 256"), "{error}");
        let error = Patterns::read(&section(r#"["re:(a{1000}){1000}"]"#), "list").unwrap_err().to_string();
        assert!(error.contains("bytes compiled"), "{error}");
        let error = Patterns::read(&section(r#"[1]"#), "list").unwrap_err().to_string();
        assert!(error.contains("no list of strings"), "{error}");
    }
}

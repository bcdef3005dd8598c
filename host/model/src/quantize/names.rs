//! Lists of modules as a few regular expressions, in the dialect of compressed-tensors: an entry `re:EXPRESSION` is matched
//! from the start of a module's name, any other entry is a whole name. Knows no config.
//!
//! Models have many modules of few kinds, so numbers become `\d+` where that is true for all of them: first all numbers of a
//! name, then all but the first (the layer's). Programs put different parts before a text model's names, so expressions
//! begin with `.*`.

use std::collections::{BTreeMap, BTreeSet};

use regex::bytes::RegexSetBuilder;

/// More expressions than this are names instead; readers bound their lists too.
const MAX_EXPRESSIONS: usize = 128;
/// Bytes that the compiled expressions may take.
const MAX_SET_BYTES: usize = 64 << 20;
/// What wrappers and models put before `layers` or `lm_head`.
const PREFIXES: [&str; 2] = ["language_model.", "model."];

/// Which numbers of a name stand for any number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Numbers {
    All,
    AllButFirst,
}

/// Entries that match each of `listed` and none of `others`, sorted.
pub(super) fn entries(listed: &[String], others: &[String]) -> Vec<String> {
    let exact = || listed.iter().cloned().collect::<BTreeSet<String>>().into_iter().collect();
    let expressions = expressions(listed, others);
    if expressions.len() > MAX_EXPRESSIONS || !separates(&expressions, listed, others) {
        return exact();
    }
    expressions.into_iter().map(|expression| format!("re:{expression}")).collect()
}

/// Expressions that should do; a name that no form fits is an expression of itself.
fn expressions(listed: &[String], others: &[String]) -> BTreeSet<String> {
    let forms = |numbers: Numbers| others.iter().map(|module| expression(module, numbers)).collect::<BTreeSet<String>>();
    let taken = [Numbers::All, Numbers::AllButFirst].map(|numbers| (numbers, forms(numbers)));
    let mut found = BTreeMap::new();
    for module in listed {
        let fits = taken.iter().map(|(numbers, taken)| (expression(module, *numbers), taken));
        let fitting = fits.into_iter().find(|(form, taken)| !taken.contains(form)).map(|(form, _)| form);
        found.insert(fitting.unwrap_or_else(|| format!("{}$", regex::escape(module))), ());
    }
    found.into_keys().collect()
}

fn expression(module: &str, numbers: Numbers) -> String {
    let bare = PREFIXES.iter().fold(module, |name, prefix| name.strip_prefix(prefix).unwrap_or(name));
    let mut seen = false;
    let parts: Vec<String> = bare
        .split('.')
        .map(|part| {
            let number = !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
            let kept = number && numbers == Numbers::AllButFirst && !std::mem::replace(&mut seen, true);
            if number && !kept { r"\d+".to_owned() } else { regex::escape(part) }
        })
        .collect();
    format!(".*{}$", parts.join(r"\."))
}

/// Whether the expressions match all of `listed` and none of `others`.
fn separates(expressions: &BTreeSet<String>, listed: &[String], others: &[String]) -> bool {
    let anchored = expressions.iter().map(|expression| format!("^(?:{expression})"));
    let set = RegexSetBuilder::new(anchored).unicode(false).size_limit(MAX_SET_BYTES).build();
    let Ok(set) = set else { return false };
    let matches = |name: &String| set.is_match(name.as_bytes());
    listed.iter().all(matches) && !others.iter().any(matches)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(list: &[&str]) -> Vec<String> {
        list.iter().map(|name| (*name).to_owned()).collect()
    }

    fn layers(count: usize, module: &str) -> Vec<String> {
        (0..count).map(|layer| format!("model.layers.{layer}.{module}")).collect()
    }

    #[test]
    fn one_expression_for_each_kind() {
        let listed = [layers(61, "self_attn.q_proj"), layers(61, "mlp.gate"), names(&["lm_head"])].concat();
        let others: Vec<String> = (0..8).flat_map(|expert| layers(61, &format!("mlp.experts.{expert}.gate_proj"))).collect();
        let wanted = [r"re:.*layers\.\d+\.mlp\.gate$", r"re:.*layers\.\d+\.self_attn\.q_proj$", r"re:.*lm_head$"];
        assert_eq!(entries(&listed, &others), wanted);
    }

    #[test]
    fn some_layers_of_a_kind_are_told_by_number() {
        let experts = |layer: usize| (0..4).map(move |expert| format!("model.layers.{layer}.mlp.experts.{expert}.up_proj"));
        let listed: Vec<String> = experts(0).chain(experts(7)).collect();
        let others: Vec<String> = (1..7).flat_map(experts).collect();
        let wanted = [r"re:.*layers\.0\.mlp\.experts\.\d+\.up_proj$", r"re:.*layers\.7\.mlp\.experts\.\d+\.up_proj$"];
        assert_eq!(entries(&listed, &others), wanted);
    }

    #[test]
    fn what_no_expression_tells_apart_is_named() {
        let listed = names(&["model.layers.1.mlp.experts.0.up_proj"]);
        let others = names(&["model.layers.1.mlp.experts.1.up_proj"]);
        assert_eq!(entries(&listed, &others), [r"re:model\.layers\.1\.mlp\.experts\.0\.up_proj$"]);
        // `.*layers.0.up$` would match the other tower's name too.
        let (listed, others) = (names(&["model.layers.0.up"]), names(&["tower.layers.0.up"]));
        assert_eq!(entries(&listed, &others), ["model.layers.0.up"]);
    }

    #[test]
    fn too_many_expressions_become_names() {
        let all: Vec<String> = (0..400).map(|i| format!("model.layers.{i}.mlp.up_proj")).collect();
        let (listed, others): (Vec<String>, Vec<String>) = all
            .into_iter()
            .partition(|name| name.contains("0.") || name.contains("2.") || name.contains("4.") || name.contains("6."));
        let found = entries(&listed, &others);
        assert_eq!(found.len(), listed.len());
        assert!(found.iter().all(|entry| listed.contains(entry)));
    }
}

//! The text of `wit/`, part of every program that loads policies: what a new project is written with, and what bindings are made
//! from, so that neither needs the repository. It does not know components.

use wit_bindgen_core::wit_parser::{PackageId, Resolve, SourceMap, WorldId};

use crate::PolicyKind;

/// Every file of `wit/`, name and text.
pub const FILES: [(&str, &str); 14] = [
    ("clock.wit", include_str!("../../../wit/clock.wit")),
    ("column-kinds.wit", include_str!("../../../wit/column-kinds.wit")),
    ("feedback.wit", include_str!("../../../wit/feedback.wit")),
    ("handover.wit", include_str!("../../../wit/handover.wit")),
    ("lifecycle.wit", include_str!("../../../wit/lifecycle.wit")),
    ("log.wit", include_str!("../../../wit/log.wit")),
    ("metrics.wit", include_str!("../../../wit/metrics.wit")),
    ("precision.wit", include_str!("../../../wit/precision.wit")),
    ("random.wit", include_str!("../../../wit/random.wit")),
    ("route.wit", include_str!("../../../wit/route.wit")),
    ("schedule.wit", include_str!("../../../wit/schedule.wit")),
    ("state.wit", include_str!("../../../wit/state.wit")),
    ("types.wit", include_str!("../../../wit/types.wit")),
    ("worlds.wit", include_str!("../../../wit/worlds.wit")),
];

/// A column kind as `wit/column-kinds.wit` lists it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ColumnKind {
    pub number: u32,
    /// `age-us`
    pub name: &'static str,
    /// `tenants`, `schedule`, `lanes`, `precisions` or `outcomes`.
    pub table: &'static str,
}

/// Every column kind, in the order of the table in the WIT.
pub fn column_kinds() -> impl Iterator<Item = ColumnKind> {
    let text = FILES.iter().find(|(name, _)| *name == "column-kinds.wit").map_or("", |(_, text)| text);
    text.lines().filter_map(|line| {
        let mut cells = line.strip_prefix("/// |")?.split('|').map(str::trim);
        let (number, name, _unit, table) = (cells.next()?, cells.next()?, cells.next()?, cells.next()?);
        Some(ColumnKind { number: number.parse().ok()?, name, table })
    })
}

/// What a policy may export beside its decision, as the contract names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Beside {
    Feedback,
    Handover,
}

impl Beside {
    /// Of the interface.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Feedback => "feedback",
            Self::Handover => "handover",
        }
    }
}

/// Every file of `wit/`, where the world of a kind exports these too: name and text.
#[must_use]
pub fn files_with(kind: PolicyKind, beside: &[Beside]) -> Vec<(&'static str, String)> {
    let world = format!("world {kind}-policy {{\n");
    let exports: String = beside.iter().map(|interface| format!("  export {};\n", interface.name())).collect();
    let with = |text: &str| text.replace(&world, &format!("{world}{exports}"));
    FILES.iter().map(|(name, text)| (*name, if *name == "worlds.wit" { with(text) } else { (*text).to_owned() })).collect()
}

/// C sources of the world of a kind, which exports these too: header, code, and an object with the component types; name and bytes.
///
/// # Errors
/// What the generator says; with the text above that is a bug.
pub fn c_bindings(kind: PolicyKind, beside: &[Beside]) -> Result<Vec<(String, Vec<u8>)>, String> {
    let (mut resolve, package) = parsed(&files_with(kind, beside))?;
    let world = world(&resolve, package, kind)?;
    let mut files = wit_bindgen_core::Files::default();
    let mut generator = wit_bindgen_c::Opts::default().build();
    generator.generate(&mut resolve, world, &mut files).map_err(|error| format!("{error:#}"))?;
    Ok(files.iter().map(|(name, bytes)| (name.to_owned(), bytes.to_vec())).collect())
}

fn parsed(files: &[(&'static str, String)]) -> Result<(Resolve, PackageId), String> {
    let mut map = SourceMap::default();
    for (name, text) in files {
        map.push_str(name, text);
    }
    let group = map.parse().map_err(|(_, error)| error.to_string())?;
    let mut resolve = Resolve::default();
    let package = resolve.push_group(group).map_err(|error| error.to_string())?;
    Ok((resolve, package))
}

fn world(resolve: &Resolve, package: PackageId, kind: PolicyKind) -> Result<WorldId, String> {
    resolve.select_world(&[package], Some(&format!("{kind}-policy"))).map_err(|error| format!("{error:#}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_file_of_the_contract_is_left_out() {
        let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../../wit");
        let entries = std::fs::read_dir(directory).expect("wit/").map(|entry| entry.expect("entry").file_name());
        let mut there: Vec<String> =
            entries.map(|name| name.to_string_lossy().into_owned()).filter(|n| n.ends_with(".wit")).collect();
        there.sort();
        assert_eq!(there, FILES.map(|(name, _)| name));
    }

    #[test]
    fn kinds_have_a_number_a_name_and_a_table() {
        let kinds: Vec<ColumnKind> = column_kinds().collect();
        assert!(kinds.contains(&ColumnKind { number: 22, name: "age-us", table: "schedule" }), "{kinds:?}");
        assert_eq!(kinds.len(), 54);
    }

    #[test]
    fn bindings_are_made_of_every_world() {
        for kind in PolicyKind::ALL {
            let files = c_bindings(kind, &[]).expect("bindings");
            let names: Vec<&str> = files.iter().map(|(name, _)| name.as_str()).collect();
            let stem = format!("{kind}_policy");
            assert_eq!(names, [format!("{stem}.c"), format!("{stem}.h"), format!("{stem}_component_type.o")]);
            assert!(files.iter().all(|(_, bytes)| bytes.len() > 300), "{kind}");
            let declares = |beside: &[Beside], function: &str| {
                let files = c_bindings(kind, beside).expect("bindings");
                String::from_utf8_lossy(&files[1].1).contains(function)
            };
            for (interface, function) in [(Beside::Feedback, "feedback_observe("), (Beside::Handover, "handover_restore(")] {
                assert!(declares(&[interface], function) && !declares(&[], function), "{kind} {interface:?}");
            }
            assert!(declares(&[Beside::Feedback, Beside::Handover], "handover_save("), "{kind}");
        }
    }
}

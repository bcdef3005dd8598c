//! `[policy.route]`, `[policy.schedule]`, `[policy.precision]`, `[policy.record]`. Knows no Wasm: a component is a path here.

use super::Base;
use crate::defaults::{self, Bounded};
use crate::reader::{Section, shown};
use crate::{Breaker, Component, ErrorKind, Policies, PolicyRecord, PolicySource, PolicySpec};

const ROUTE: &str = "route";

pub(super) fn read(section: &mut Section<'_, '_>, base: &Base) -> Policies {
    let record = record(&mut section.section("record"), base);
    let mut max_held_ms = defaults::MAX_HELD_MS.default;
    let mut policy = |kind, deadline| {
        let mut section = section.section(kind);
        let policy = policy(&mut section, kind, deadline, base);
        if kind == ROUTE {
            max_held_ms = section.number("max_held_ms", defaults::MAX_HELD_MS);
        }
        section.finish();
        policy
    };
    let route = policy(ROUTE, defaults::ROUTE_DEADLINE_US);
    let schedule = policy("schedule", defaults::SCHEDULE_DEADLINE_US);
    let precision = policy("precision", defaults::PRECISION_DEADLINE_US);
    section.finish();
    Policies { route, schedule, precision, max_held_ms, record }
}

/// Off without a directory.
fn record(section: &mut Section<'_, '_>, base: &Base) -> Option<PolicyRecord> {
    let directory = section.text("directory", "recordings");
    let max_mib = section.count("max_mib", defaults::RECORD_MIB);
    if section.has("max_mib") && !section.has("directory") {
        let message = "bounds a recording, but there is no `directory`, so nothing is recorded".to_owned();
        section.error(ErrorKind::Conflict, "max_mib", message, "add `directory = \"recordings\"` or remove it");
    }
    section.finish();
    Some(PolicyRecord { directory: base.join(&directory?), max_mib })
}

fn policy(section: &mut Section<'_, '_>, kind: &str, deadline: Bounded, base: &Base) -> PolicySpec {
    let source = source(section, kind, base);
    let config_json = section.json("config");
    if source == PolicySource::Native && section.has("config") {
        let message = "the native policy takes no configuration".to_owned();
        section.error(ErrorKind::Conflict, "config", message, "remove it or use a component");
    }
    PolicySpec {
        source,
        config_json,
        deadline_us: section.number("deadline_us", deadline),
        init_deadline_ms: section.number("init_deadline_ms", defaults::INIT_DEADLINE_MS),
        memory_mib: section.count("memory_mib", defaults::POLICY_MEMORY_MIB),
        max_component_mib: section.count("max_component_mib", defaults::MAX_COMPONENT_MIB),
        compile_timeout_ms: section.number("compile_timeout_ms", defaults::COMPILE_TIMEOUT_MS),
        watch: watch(section),
        log_lines_per_s: section.count("log_lines_per_s", defaults::LOG_LINES_PER_S),
        breaker: Breaker {
            faults: section.count("breaker_faults", defaults::BREAKER_FAULTS),
            backoff_ms: section.number("breaker_backoff_ms", defaults::BREAKER_BACKOFF_MS),
        },
    }
}

fn watch(section: &mut Section<'_, '_>) -> bool {
    let watch = section.flag("watch", false);
    if watch && section.has("sha256") {
        let message = "is on, but `sha256` pins the file: any change would be refused".to_owned();
        section.error(ErrorKind::Conflict, "watch", message, "remove one of them");
    }
    watch
}

fn source(section: &mut Section<'_, '_>, kind: &str, base: &Base) -> PolicySource {
    let builtins = defaults::BUILTINS.iter().find(|(of, _)| *of == kind).map_or(&[][..], |(_, names)| names);
    let first = builtins.first().copied().unwrap_or_default();
    let text = section.text("component", "builtin").unwrap_or_else(|| "builtin".to_owned());
    let sha256 = section.digest("sha256");
    let source = match text.as_str() {
        "builtin" => PolicySource::Builtin(first),
        "native" => PolicySource::Native,
        path if path.ends_with(".wasm") => {
            return PolicySource::Component(Component { path: base.join(path), sha256 });
        }
        other => match other.strip_prefix("builtin:").and_then(|name| builtins.iter().find(|known| **known == name)) {
            Some(name) => PolicySource::Builtin(name),
            None => {
                let message = format!("{} is neither a policy of the host nor a .wasm file", shown(other));
                let hint = format!(
                    "use \"builtin\", \"builtin:{}\", \"native\" or the path of a component, \"policy.wasm\"",
                    builtins.join("\", \"builtin:")
                );
                section.error(ErrorKind::Impossible, "component", message, &hint);
                return PolicySource::Builtin(first);
            }
        },
    };
    if section.has("sha256") {
        let message = format!("pins a file, but `component` is \"{text}\", which is part of the binary");
        section.error(ErrorKind::Conflict, "sha256", message, "remove it or name a .wasm file");
    }
    source
}

//! `[model.NAME]` and `[device.NAME]`. Knows neither checkpoints nor devices, only how they are named.

use std::path::PathBuf;

use millrace_core::Compute;

use super::{Base, missing_table};
use crate::defaults::{MAX_MODEL_TOKENS, THREADS};
use crate::reader::{Section, shown};
use crate::{Device, DeviceKind, ErrorKind, Model};

const COMPUTES: [(&str, Compute); 3] =
    [("fast", Compute::Fast), ("precise", Compute::Precise), ("reference", Compute::Reference)];

pub(super) fn models(root: &mut Section<'_, '_>, base: &Base) -> Vec<Model> {
    const KIND: &str = "model";
    let tables = root.named(KIND);
    if tables.is_empty() {
        missing_table(root, KIND, "nothing could be served", "`[model.NAME]` with `path = \"model.gguf\"`");
    }
    let mut models = Vec::new();
    for (row, table) in tables.iter().enumerate() {
        let mut section = root.open(KIND, table);
        if row > 0 {
            let message = "a deployment serves exactly one model for now, and this is another".to_owned();
            section.error_here(ErrorKind::Conflict, message, "give each model a deployment of its own");
        }
        models.push(model(&mut section, &table.name, base));
        section.finish();
    }
    models
}

fn model(section: &mut Section<'_, '_>, table: &str, base: &Base) -> Model {
    let name = section.text("name", table).unwrap_or_else(|| table.to_owned());
    if !is_model_id(&name) {
        let message = format!("{} is no model id", shown(&name));
        let hint = "use 1 to 128 letters, digits and `-_.:/`, as in `org/model`";
        section.error(ErrorKind::Impossible, "name", message, hint);
    }
    Model {
        table: table.to_owned(),
        name,
        path: section.required_text("path", "model.gguf").map_or_else(PathBuf::new, |path| base.join(&path)),
        max_model_tokens: section.count_or_none("max_model_tokens", MAX_MODEL_TOKENS),
        chat_template: section.text("chat_template", "template.jinja").map(|path| base.join(&path)),
    }
}

fn is_model_id(name: &str) -> bool {
    let allowed = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'_' | b'.' | b':' | b'/');
    !name.is_empty() && name.len() <= 128 && name.bytes().all(allowed)
}

pub(super) fn devices(root: &mut Section<'_, '_>) -> Vec<Device> {
    const KIND: &str = "device";
    let mut devices = Vec::new();
    for table in root.named(KIND) {
        let mut section = root.open(KIND, &table);
        devices.push(device(&mut section, &table.name));
        section.finish();
    }
    // The processor is always there.
    if devices.is_empty() {
        devices.push(Device { name: "cpu".to_owned(), kind: DeviceKind::Cpu, threads: None, compute: Compute::Fast });
    }
    devices
}

fn device(section: &mut Section<'_, '_>, name: &str) -> Device {
    Device {
        name: name.to_owned(),
        kind: section.choice("kind", &[("cpu", DeviceKind::Cpu)], DeviceKind::Cpu),
        threads: section.count_or_none("threads", THREADS),
        compute: section.choice("compute", &COMPUTES, Compute::Fast),
    }
}

//! `millrace policy inspect`: what a file is, without compiling or running it.

use std::path::PathBuf;

use clap::Args;
use millrace_policy_wasm::{Inspection, Interface};
use serde_json::{Value, json};

use super::source::Source;
use crate::Failure;
use crate::output::say;

#[derive(Args)]
pub(crate) struct InspectArgs {
    /// A component, or a core module with component types.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// One JSON object.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &InspectArgs) -> Result<(), Failure> {
    let found = Source::read(&args.file)?.inspection;
    if args.json {
        say!("{}", object(&found));
        return Ok(());
    }
    let decisions: Vec<String> = found.kinds.iter().map(ToString::to_string).collect();
    let format = if found.is_component { "a component" } else { "a core module with component types" };
    say!("{}: {format}", args.file.display());
    say!("size       {} bytes", found.bytes);
    say!("sha256     {}", found.sha256);
    say!("decides    {}", if decisions.is_empty() { "nothing".to_owned() } else { decisions.join(", ") });
    for (title, interfaces) in [("imports", &found.imports), ("exports", &found.exports)] {
        let mut title = title;
        for interface in interfaces {
            say!("{title:<10} {}", line(interface));
            title = "";
        }
        if interfaces.is_empty() {
            say!("{title:<10} nothing");
        }
    }
    say!("optional   {}", if found.optional().is_empty() { "none".to_owned() } else { found.optional().join(", ") });
    Ok(())
}

fn line(interface: &Interface) -> String {
    if interface.functions.is_empty() {
        return interface.name.clone();
    }
    format!("{}: {}", interface.name, interface.functions.join(", "))
}

fn object(found: &Inspection) -> Value {
    let list = |interfaces: &[Interface]| -> Vec<Value> {
        interfaces.iter().map(|i| json!({"name": i.name, "functions": i.functions})).collect()
    };
    json!({
        "bytes": found.bytes, "sha256": found.sha256, "component": found.is_component,
        "kinds": found.kinds.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "imports": list(&found.imports), "exports": list(&found.exports), "optional": found.optional(),
    })
}

//! Makes a component of a core module that wit-bindgen wrote: `componentize IN.wasm OUT.wasm`.

use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [source, target] = arguments.as_slice() else {
        eprintln!("usage: componentize IN.wasm OUT.wasm");
        return ExitCode::from(2);
    };
    match run(source, target) {
        Ok(bytes) => {
            println!("{target}: {bytes} bytes");
            ExitCode::SUCCESS
        }
        Err(reason) => {
            eprintln!("{source}: {reason}");
            ExitCode::FAILURE
        }
    }
}

fn run(source: &str, target: &str) -> Result<usize, String> {
    let core = std::fs::read(source).map_err(|error| error.to_string())?;
    let component = millrace_policy_wasm::componentize(&core).map_err(|error| error.to_string())?;
    std::fs::write(target, &component).map_err(|error| format!("cannot write {target}: {error}"))?;
    Ok(component.len())
}

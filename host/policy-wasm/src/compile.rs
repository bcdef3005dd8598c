//! From bytes to compiled code: tells apart what was given, makes components of core modules, compiles on a thread of its own
//! with a time cap. A compile that was given up runs on to its end, so only a few may run at once.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use wasmtime::Engine;
use wasmtime::component::Component;

use crate::LoadError;
use crate::fault::one_line;
use crate::slim::without_custom;

const MAX_COMPILES: usize = 4;
const CORE_VERSION: [u8; 4] = [1, 0, 0, 0];
const COMPONENT_VERSION: [u8; 4] = [13, 0, 1, 0];

/// What a file is by its first eight bytes: magic `\0asm`, then a version and a layer of two bytes each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    Core,
    Component,
}

/// Makes a component of a core module that carries its component types in a custom section, as wit-bindgen writes them.
///
/// # Errors
/// [`LoadError::NotWasm`] or [`LoadError::Componentized`] if it is no core module, [`LoadError::CoreModule`] without component types,
/// [`LoadError::Componentize`] if they do not fit the module.
pub fn componentize(core: &[u8]) -> Result<Vec<u8>, LoadError> {
    if format_of(core)? == Format::Component {
        return Err(LoadError::Componentized);
    }
    let section = b"component-type";
    if !core.windows(section.len()).any(|window| window == section) {
        return Err(LoadError::CoreModule);
    }
    let encode = || wit_component::ComponentEncoder::default().validate(true).module(core).and_then(|encoder| encoder.encode());
    let encoded = sheltered("encoder", encode).map_err(|detail| LoadError::Componentize { detail })?;
    let encoded = encoded.map_err(|error| LoadError::Componentize { detail: one_line(&format!("{error:#}")) })?;
    Ok(without_custom(&encoded).unwrap_or(encoded))
}

/// Work on bytes that may be hostile. A panic in a parser is an answer like another.
pub(crate) fn sheltered<T>(what: &str, work: impl FnOnce() -> T) -> Result<T, String> {
    let panicked =
        |_| format!("the {what} panicked on it, which is a fault of the {what}; what it is made of is damaged or made to harm");
    catch_unwind(AssertUnwindSafe(work)).map_err(panicked)
}

/// Compiles bytes of either format.
pub(crate) fn compile(engine: &Engine, source: &[u8], cap: Duration, gate: &CompileGate) -> Result<Component, LoadError> {
    let format = format_of(source)?;
    let slot = gate.enter(cap)?;
    let (engine, source) = (engine.clone(), source.to_vec());
    let (sender, receiver) = channel();
    let work = move || {
        let _slot = slot;
        // Nobody listens any more where the time was over.
        let _ = sender.send(compile_now(&engine, &source, format));
    };
    let spawned = thread::Builder::new().name("policy-compile".into()).spawn(work);
    spawned.map_err(|error| LoadError::Compile { detail: format!("cannot start a thread: {error}") })?;
    match receiver.recv_timeout(cap) {
        Ok(result) => result,
        Err(RecvTimeoutError::Timeout) => {
            Err(LoadError::CompileTime { limit_ms: u64::try_from(cap.as_millis()).unwrap_or(u64::MAX) })
        }
        Err(RecvTimeoutError::Disconnected) => Err(LoadError::Compile { detail: "the compiler panicked".to_owned() }),
    }
}

fn compile_now(engine: &Engine, source: &[u8], format: Format) -> Result<Component, LoadError> {
    let compiled = match format {
        Format::Component => Component::from_binary(engine, source),
        Format::Core => Component::from_binary(engine, &componentize(source)?),
    };
    let component = compiled.map_err(|error| LoadError::Compile { detail: one_line(&format!("{error:#}")) })?;
    // Otherwise the first instance pays for the memory image.
    component.initialize_copy_on_write_image().map_err(|error| LoadError::Compile { detail: one_line(&format!("{error:#}")) })?;
    Ok(component)
}

pub(crate) fn format_of(source: &[u8]) -> Result<Format, LoadError> {
    if Engine::detect_precompiled(source).is_some() {
        return Err(LoadError::Precompiled);
    }
    match source.split_at_checked(8).map(|(head, _)| head.split_at(4)) {
        Some((b"\0asm", version)) if version == CORE_VERSION => Ok(Format::Core),
        Some((b"\0asm", version)) if version == COMPONENT_VERSION => Ok(Format::Component),
        _ => {
            let head: String = source.iter().take(8).flat_map(|&byte| std::ascii::escape_default(byte)).map(char::from).collect();
            Err(LoadError::NotWasm { found: format!("\"{head}\"") })
        }
    }
}

/// Lets a few compiles run at once; others wait.
#[derive(Debug, Clone, Default)]
pub(crate) struct CompileGate(Arc<Gate>);

#[derive(Debug, Default)]
struct Gate {
    running: Mutex<usize>,
    left: Condvar,
}

/// A compile that runs, until its thread ends.
struct Running(CompileGate);

impl CompileGate {
    fn enter(&self, cap: Duration) -> Result<Running, LoadError> {
        let running = self.0.running.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.0.left.wait_timeout_while(running, cap, |running| *running >= MAX_COMPILES);
        let (mut running, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if *running >= MAX_COMPILES {
            return Err(LoadError::CompileBusy { running: *running });
        }
        *running += 1;
        Ok(Running(self.clone()))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let gate = &self.0.0;
        let mut running = gate.running.lock().unwrap_or_else(PoisonError::into_inner);
        *running = running.saturating_sub(1);
        gate.left.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parser_that_panics_is_an_error() {
        assert_eq!(sheltered("parser", || 7), Ok(7));
        let detail = sheltered("parser", || -> u8 { panic!("by a hostile file") }).expect_err("a panic");
        assert!(detail.contains("the parser panicked"), "{detail}");
    }

    #[test]
    fn what_is_no_core_module_is_not_taken_for_one() {
        assert!(matches!(componentize(b"#!/bin/sh\n"), Err(LoadError::NotWasm { .. })));
        assert!(matches!(componentize(crate::builtin::ROUTE), Err(LoadError::Componentized)));
        assert!(matches!(componentize(b"\0asm\x01\0\0\0"), Err(LoadError::CoreModule)));
    }

    #[test]
    fn a_fifth_compile_waits_for_one_to_end() {
        let gate = CompileGate::default();
        let mut running: Vec<Running> = (0..MAX_COMPILES).map(|_| gate.enter(Duration::ZERO).expect("room")).collect();
        let full = gate.enter(Duration::from_millis(1)).map(|_| ());
        assert_eq!(full, Err(LoadError::CompileBusy { running: MAX_COMPILES }));
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| gate.enter(Duration::from_secs(60)).is_ok());
            running.pop();
            assert!(waiting.join().expect("no panic"));
        });
    }
}

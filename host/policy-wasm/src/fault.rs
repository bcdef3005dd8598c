//! From what wasmtime says went wrong to the kind of fault and one line for the log.

use millrace_policy::FaultKind;
use wasmtime::{PoolConcurrencyLimitError, Trap, WasmBacktrace};

const MAX_DETAIL_BYTES: usize = 512;

/// `refused`: the limiter refused memory during the call, which most guests answer with an abort.
pub(crate) fn classify(error: &wasmtime::Error, refused: bool) -> (FaultKind, String) {
    if error.downcast_ref::<PoolConcurrencyLimitError>().is_some() {
        // Not the guest's fault.
        return (FaultKind::Unavailable, "all instances of the engine are in use; raise their number".to_owned());
    }
    let kind = match error.downcast_ref::<Trap>() {
        Some(Trap::Interrupt | Trap::OutOfFuel) => FaultKind::Timeout,
        Some(Trap::AllocationTooLarge) => FaultKind::Memory,
        _ if refused => FaultKind::Memory,
        Some(_) => FaultKind::Trap,
        // Not the guest's code but what it gave back: a list out of bounds, text that is no UTF-8, more than the output bound.
        None => FaultKind::Invalid,
    };
    let mut detail = match kind {
        FaultKind::Timeout if error.downcast_ref::<Trap>() == Some(&Trap::OutOfFuel) => "took more than its fuel".to_owned(),
        FaultKind::Timeout => "took longer than its deadline".to_owned(),
        FaultKind::Memory => "asked for more memory than its limit".to_owned(),
        _ => error.root_cause().to_string(),
    };
    let frame = error.downcast_ref::<WasmBacktrace>().and_then(|trace| trace.frames().first()?.func_name());
    if let Some(function) = frame {
        detail.push_str(" in `");
        detail.push_str(function);
        detail.push('`');
    }
    (kind, one_line(&detail))
}

/// Bounded, and without control characters: texts of guests reach logs and pages of the host.
pub(crate) fn one_line(text: &str) -> String {
    let cut = &text[..text.floor_char_boundary(MAX_DETAIL_BYTES)];
    cut.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

//! Mixture of experts: routing rows, moving them to their experts and back, and the experts' products. What they share: the
//! buffers that a step's routing is kept in, and what may be believed of their contents. Knows no model.
//!
//! Routing is written by the device but sits in buffers that uploads reach, so every operation checks what it follows.

mod choice;
mod combine;
mod dispatch;
mod division;
mod products;
mod route;

use millrace_ops::{BackendError, ExpertBuffers};

use crate::memory::Region;
use crate::task::{Arguments, product};

pub(crate) use combine::CombineRowsTask;
pub(crate) use dispatch::DispatchRowsTask;
pub(crate) use products::LinearExpertsTask;
pub(crate) use route::RouteRowsTask;

/// More experts than any model has in a layer; a larger number is a mistake.
const MAX_EXPERTS: usize = 4096;

/// The number of slots of a step of `rows` rows; refuses numbers of experts and slots that make no sense.
fn slot_count(arguments: Arguments, by: &ExpertBuffers, rows: usize) -> Result<usize, BackendError> {
    let (experts, top_k) = (by.experts, by.top_k);
    arguments.require(experts > 0 && experts <= MAX_EXPERTS, || format!("{experts} experts; use 1 to {MAX_EXPERTS}"))?;
    arguments.require(top_k > 0 && top_k <= experts, || format!("top_k of {top_k} of {experts} experts; use 1 to {experts}"))?;
    let slots = product(&[rows, top_k]);
    arguments
        .require(u32::try_from(slots).is_ok(), || format!("{rows} rows of {top_k} choices are more slots than 32 bits count"))?;
    Ok(slots)
}

/// Where each expert's slots begin, and their number at the end.
struct Starts {
    words: Region,
    experts: usize,
    slots: usize,
}

impl Starts {
    fn new(arguments: Arguments, by: &ExpertBuffers, slots: usize) -> Result<Self, BackendError> {
        let words = arguments.region("by.starts", by.starts.clone(), product(&[by.experts + 1, 4]))?;
        Ok(Self { words, experts: by.experts, slots })
    }

    /// The words; refuses those that do not rise from 0 to the number of slots.
    fn checked(&self, arguments: Arguments) -> Result<&[u32], BackendError> {
        // SAFETY: only uploads and routing write starts, in phases of their own.
        let starts = unsafe { self.words.items::<u32>(0, self.experts + 1) };
        let (first, last) = (starts[0], starts[self.experts]);
        arguments.require(first == 0 && last as usize == self.slots && starts.is_sorted(), || {
            format!("starts of experts go from {first} to {last} where they must rise from 0 to {} slots", self.slots)
        })?;
        Ok(starts)
    }
}

//! Where packed weights lie: 64-byte aligned runs cut from shared chunks, so that many weights of less than a huge page each
//! still sit on huge pages (a tenth more read bandwidth). Knows no layout.

use std::sync::{Arc, Mutex, PoisonError};

use crate::memory::HostMemory;

const LINE_BYTES: usize = 64;
const CHUNK_BYTES: usize = 16 << 20;

/// The chunk that the next weights are cut from. It lives as long as the last weight in it.
struct Chunk {
    memory: Arc<HostMemory>,
    bytes: usize,
    used: usize,
}

static OPEN_CHUNK: Mutex<Option<Chunk>> = Mutex::new(None);

/// Zeroed bytes of one weight. Writable while it is being packed (`&mut`), shared and read-only after that.
pub(super) struct Storage {
    memory: Arc<HostMemory>,
    offset: usize,
    bytes: usize,
}

impl Storage {
    /// # Errors
    /// A sentence when memory is exhausted.
    pub(super) fn zeroed(bytes: usize) -> Result<Self, String> {
        let whole = bytes.next_multiple_of(LINE_BYTES);
        let mut open = OPEN_CHUNK.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(chunk) = open.as_mut().filter(|chunk| chunk.bytes - chunk.used >= whole) {
            let offset = chunk.used;
            chunk.used += whole;
            return Ok(Self { memory: Arc::clone(&chunk.memory), offset, bytes });
        }
        let size = whole.max(CHUNK_BYTES);
        let memory = Arc::new(HostMemory::new(size).map_err(|error| error.to_string())?);
        // A weight that fills its chunk does not displace one that still has room.
        if whole < CHUNK_BYTES {
            *open = Some(Chunk { memory: Arc::clone(&memory), bytes: size, used: whole });
        }
        Ok(Self { memory, offset: 0, bytes })
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Start of the bytes, 64-byte aligned.
    pub(super) fn start(&self) -> *const u8 {
        // SAFETY: `offset + bytes` lies within the chunk by `zeroed`.
        unsafe { self.memory.start().add(self.offset) }
    }

    pub(super) fn as_slice(&self) -> &[u8] {
        // SAFETY: the run belongs to this value alone, is initialised (zeroed) and is written only through `as_mut_slice`.
        unsafe { std::slice::from_raw_parts(self.start(), self.bytes) }
    }

    pub(super) fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as above; `&mut self` makes it exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.memory.start().add(self.offset), self.bytes) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_aligned_zeroed_and_apart() {
        let mut runs: Vec<Storage> = [1, 64, 100, 5 << 20, 9 << 20, 17 << 20, 3].map(|n| Storage::zeroed(n).unwrap()).into();
        for (i, run) in runs.iter_mut().enumerate() {
            assert_eq!(run.start() as usize % 64, 0);
            assert!(run.as_slice().iter().all(|&b| b == 0));
            run.as_mut_slice().fill(i as u8 + 1);
        }
        for (i, run) in runs.iter().enumerate() {
            assert!(run.as_slice().iter().all(|&b| b == i as u8 + 1));
        }
    }
}

//! Device memory of the CPU backend and the bounds-checked windows through which operations reach it.
//! Knows no operation.
//!
//! Who may touch what: the pool runs one submission at a time and its operations one after the other, with a barrier after
//! each phase; inside a phase, workers write disjoint parts and nobody reads a part that another worker writes. That rule is
//! what the `unsafe` methods of [`Region`] ask of their callers; bounds and alignment are checked here.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::any::Any;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64};

use millrace_ops::{BackendError, Buffer, DeviceMemory, PageEntry, SamplerParams, Segment, StagedPage, TagDelta};

/// Every buffer starts on a cache line, which is also the widest vector.
const LINE_BYTES: usize = 64;
/// Buffers of at least this size are mapped on huge-page boundaries.
const HUGE_BYTES: usize = 2 << 20;

pub(crate) const DEVICE: &str = "cpu";

enum Source {
    Heap(Layout),
    Mapped { base: *mut libc::c_void, bytes: usize },
}

/// Zeroed memory, aligned to 64 bytes (2 MiB where it is large, with huge pages asked for).
pub(crate) struct HostMemory {
    start: NonNull<u8>,
    bytes: usize,
    source: Source,
}

// SAFETY: the memory belongs to no thread; all access goes through `Region`, whose callers keep accesses disjoint.
unsafe impl Send for HostMemory {}
// SAFETY: as above; `HostMemory` itself gives out nothing but its address and size.
unsafe impl Sync for HostMemory {}

impl HostMemory {
    /// # Errors
    /// [`BackendError::OutOfMemory`].
    pub(crate) fn new(bytes: usize) -> Result<Self, BackendError> {
        let memory = if bytes >= HUGE_BYTES { Self::mapped(bytes) } else { Self::heap(bytes) };
        memory.ok_or_else(|| BackendError::OutOfMemory { device: DEVICE.into(), bytes })
    }

    fn heap(bytes: usize) -> Option<Self> {
        let layout = Layout::from_size_align(bytes.max(LINE_BYTES), LINE_BYTES).ok()?;
        // SAFETY: the layout's size is at least one line, so not zero.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        Some(Self { start, bytes, source: Source::Heap(layout) })
    }

    fn mapped(bytes: usize) -> Option<Self> {
        let whole = bytes.checked_next_multiple_of(HUGE_BYTES)?;
        let mapped = whole.checked_add(HUGE_BYTES)?;
        // SAFETY: an anonymous private mapping at an address of the kernel's choice touches no memory of ours.
        let base = unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            libc::mmap(std::ptr::null_mut(), mapped, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)
        };
        if base == libc::MAP_FAILED {
            return None;
        }
        let skip = base.cast::<u8>().align_offset(HUGE_BYTES);
        // SAFETY: `skip < HUGE_BYTES` and the mapping has `whole + HUGE_BYTES` bytes.
        let start = unsafe { base.cast::<u8>().add(skip) };
        // SAFETY: `start .. start + whole` lies in the mapping; advice changes no contents. A refusal costs speed only.
        unsafe { libc::madvise(start.cast(), whole, libc::MADV_HUGEPAGE) };
        Some(Self { start: NonNull::new(start)?, bytes, source: Source::Mapped { base, bytes: mapped } })
    }

    pub(crate) fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        match self.source {
            // SAFETY: allocated in `heap` with this layout and freed once, here.
            Source::Heap(layout) => unsafe { dealloc(self.start.as_ptr(), layout) },
            // SAFETY: mapped in `mapped` with this base and size and unmapped once, here.
            Source::Mapped { base, bytes } => unsafe {
                libc::munmap(base, bytes);
            },
        }
    }
}

impl DeviceMemory for HostMemory {
    fn bytes(&self) -> usize {
        self.bytes
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// Types that any bytes are a value of.
///
/// # Safety
/// `repr(C)` or primitive, without padding, every bit pattern valid.
pub(crate) unsafe trait Plain: Copy + 'static {}

macro_rules! plain {
    ($($type:ty),+) => {
        $(
            // SAFETY: an integer, a float, or a `repr(C)` struct of such without padding (see `millrace_ops::op`).
            unsafe impl Plain for $type {}
        )+
    };
}
plain!(u8, i8, u16, u32, u64, f32, PageEntry, Segment, SamplerParams, StagedPage, TagDelta);

/// A buffer, or shared scratch, resolved to memory and kept alive.
pub(crate) struct Region {
    start: *mut u8,
    bytes: usize,
    _owner: Owner,
}

enum Owner {
    Buffer { _keep: Buffer },
    Scratch { _keep: Arc<HostMemory> },
}

// SAFETY: the owner keeps the memory alive; access rules are those of the module's head.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// `None` where the buffer is another backend's.
    pub(crate) fn of(buffer: Buffer) -> Option<Self> {
        let memory = buffer.memory().downcast_ref::<HostMemory>()?;
        let (start, bytes) = (memory.start(), memory.bytes);
        Some(Self { start, bytes, _owner: Owner::Buffer { _keep: buffer } })
    }

    pub(crate) fn scratch(memory: &Arc<HostMemory>) -> Self {
        Self { start: memory.start(), bytes: memory.bytes, _owner: Owner::Scratch { _keep: Arc::clone(memory) } }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn same_memory(&self, other: &Self) -> bool {
        std::ptr::eq(self.start, other.start)
    }

    /// Address of `count` items of `T` at byte `offset`.
    ///
    /// Panics where they do not fit or are not aligned; the pool turns that into a failed submission.
    #[inline]
    fn address<T>(&self, offset: usize, count: usize) -> *mut T {
        let size = count.checked_mul(size_of::<T>()).and_then(|size| size.checked_add(offset));
        assert!(
            size.is_some_and(|end| end <= self.bytes) && offset.is_multiple_of(align_of::<T>()),
            "access to {count} items of {} bytes at byte {offset} of a buffer of {} bytes",
            size_of::<T>(),
            self.bytes
        );
        // SAFETY: `offset <= bytes` was just checked, so the address stays inside (or at the end of) the allocation.
        unsafe { self.start.add(offset).cast() }
    }

    /// Address of the first of `count` items, for kernels that take pointers.
    pub(crate) fn address_of<T: Plain>(&self, count: usize) -> *mut T {
        self.address(0, count)
    }

    /// `count` items beginning at item `first`.
    ///
    /// # Safety
    /// Nobody writes them while the slice lives.
    #[inline]
    pub(crate) unsafe fn items<T: Plain>(&self, first: usize, count: usize) -> &[T] {
        // SAFETY: in bounds and aligned by `items_at`; not written meanwhile by this function's own condition.
        unsafe { self.items_at(first.saturating_mul(size_of::<T>()), count) }
    }

    /// `count` items beginning at byte `offset`.
    ///
    /// # Safety
    /// Nobody writes them while the slice lives.
    #[inline]
    pub(crate) unsafe fn items_at<T: Plain>(&self, offset: usize, count: usize) -> &[T] {
        let address = self.address::<T>(offset, count);
        // SAFETY: in bounds and aligned by `address`, initialised since the memory began as zeros, any bytes are a `T`.
        unsafe { std::slice::from_raw_parts(address, count) }
    }

    /// `count` items beginning at item `first`, to be written.
    ///
    /// # Safety
    /// Nobody else reads or writes them while the slice lives.
    #[inline]
    #[expect(clippy::mut_from_ref, reason = "device memory; exclusive use is the caller's condition")]
    pub(crate) unsafe fn items_mut<T: Plain>(&self, first: usize, count: usize) -> &mut [T] {
        // SAFETY: this function's own condition.
        unsafe { self.items_at_mut(first.saturating_mul(size_of::<T>()), count) }
    }

    /// `count` items beginning at byte `offset`, to be written.
    ///
    /// # Safety
    /// Nobody else reads or writes them while the slice lives.
    #[inline]
    #[expect(clippy::mut_from_ref, reason = "device memory; exclusive use is the caller's condition")]
    pub(crate) unsafe fn items_at_mut<T: Plain>(&self, offset: usize, count: usize) -> &mut [T] {
        let address = self.address::<T>(offset, count);
        // SAFETY: as in `items_at`; exclusive by the caller's condition.
        unsafe { std::slice::from_raw_parts_mut(address, count) }
    }

    /// A word that several workers may read and write at once.
    #[inline]
    pub(crate) fn word(&self, index: usize) -> &AtomicU32 {
        let address = self.address::<AtomicU32>(index.saturating_mul(4), 1);
        // SAFETY: in bounds and aligned by `address`; operations access words of this buffer only through this method.
        unsafe { &*address }
    }

    /// A double word that the host may read while workers write it.
    #[inline]
    pub(crate) fn double_word(&self, index: usize) -> &AtomicU64 {
        let address = self.address::<AtomicU64>(index.saturating_mul(8), 1);
        // SAFETY: in bounds and aligned by `address`; records are accessed only through this method.
        unsafe { &*address }
    }
}

//! What a backend can refuse or fail at. Knows no HTTP status: the host maps these once.

/// A failure of a device or a request that a device cannot carry out.
#[derive(Debug, Clone, thiserror::Error)]
pub enum BackendError {
    /// Device memory is exhausted.
    #[error("{device}: cannot allocate {bytes} bytes of device memory; lower the page pool or the model size")]
    OutOfMemory { device: String, bytes: usize },
    /// The device cannot prepare a tensor in the wanted format.
    #[error("{device}: tensor `{tensor}`: {why}")]
    Unsupported { device: String, tensor: String, why: String },
    /// A handle of another backend, or an argument that does not fit the buffers it names.
    #[error("{device}: {operation}: {why}")]
    Invalid { device: String, operation: &'static str, why: String },
    /// The device failed while running a submission; nothing of that queue can be trusted any more.
    #[error("{device}: a submission failed: {why}; the engine on this queue must be restarted")]
    Failed { device: String, why: String },
    /// A host read that this backend forbids (only step records may be read while serving).
    #[error("{device}: host reads of device memory are not allowed here; only step records are")]
    ReadForbidden { device: String },
}

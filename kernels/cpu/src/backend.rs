//! The CPU as a device: memory, prepared weights and queues over one worker pool. Knows no model.

use std::sync::Arc;

use millrace_ops::{
    Activations, Backend, BackendError, Buffer, DeviceDescription, OperationTime, Priority, Queue, TensorView, Wake, Weight,
    WeightFormat,
};

use crate::isa::Isa;
use crate::linear::{CpuCompute, PackedWeight};
use crate::memory::{DEVICE, HostMemory};
use crate::pool::{Compute, Pool};
use crate::queue::CpuQueue;

/// More threads than any machine gains from; a larger number is a mistake in a file.
/// Worker threads of one backend.
pub const MAX_THREADS: usize = 1024;

/// How a [`CpuBackend`] computes.
#[derive(Debug, Clone)]
pub struct CpuOptions {
    /// Workers of the pool, 1..=1024; see [`crate::available_threads`].
    pub threads: usize,
    pub compute: CpuCompute,
    /// `None`: the best of this machine.
    pub isa: Option<Isa>,
}

/// The CPU. One persistent worker pool serves all its queues; the thread that submits takes no part in the work.
/// The pool ends with the last of the backend and its queues.
pub struct CpuBackend {
    pool: Arc<Pool>,
}

impl CpuBackend {
    /// # Errors
    /// [`BackendError::Invalid`] for a thread count out of range or an instruction set that this machine has not,
    /// [`BackendError::Failed`] where threads cannot be started.
    pub fn new(options: CpuOptions) -> Result<Self, BackendError> {
        let invalid = |why| BackendError::Invalid { device: DEVICE.into(), operation: "start", why };
        if options.threads == 0 || options.threads > MAX_THREADS {
            return Err(invalid(format!("{} threads; use 1 to {MAX_THREADS}", options.threads)));
        }
        let isa = options.isa.unwrap_or_else(Isa::detect);
        if !isa.supported() {
            let best = Isa::detect();
            return Err(invalid(format!("this machine has no {isa}; leave the choice open or use {best}")));
        }
        let pool = Pool::new(options.threads, Compute { isa, mode: options.compute, priority: Priority::Normal })?;
        Ok(Self { pool: Arc::new(pool) })
    }

    /// From now on [`Backend::operation_times`] counts. Costs two looks at the clock an operation.
    pub fn measure_operations(&self) {
        self.pool.times().begin();
    }
}

impl Backend for CpuBackend {
    fn describe(&self) -> DeviceDescription {
        let Compute { isa, mode, .. } = self.pool.compute();
        let architecture = match mode {
            CpuCompute::Reference => "reference".to_owned(),
            CpuCompute::Fast => isa.to_string(),
            CpuCompute::Precise => format!("{isa}, precise"),
        };
        DeviceDescription { name: DEVICE.into(), architecture, threads: self.pool.workers() }
    }

    fn allocate(&self, bytes: usize) -> Result<Buffer, BackendError> {
        Ok(Buffer::new(Arc::new(HostMemory::new(bytes)?)))
    }

    fn prepare_weight(
        &self,
        parts: &[TensorView<'_>],
        format: WeightFormat,
        activations: Activations,
    ) -> Result<Weight, BackendError> {
        let Compute { isa, mode, .. } = self.pool.compute();
        let mode = match (mode, activations) {
            (CpuCompute::Fast, Activations::Fine) => CpuCompute::Precise,
            _ => mode,
        };
        let packed = PackedWeight::pack(parts, format, mode, isa).map_err(|why| {
            let tensor = parts.first().map_or_else(|| "(no parts)".to_owned(), |part| part.name.to_owned());
            BackendError::Unsupported { device: DEVICE.into(), tensor, why }
        })?;
        Ok(Weight::new(Arc::new(packed)))
    }

    fn queue(&self, priority: Priority, wake: Wake) -> Box<dyn Queue> {
        Box::new(CpuQueue::new(Arc::clone(&self.pool), priority, wake))
    }

    fn operation_times(&self) -> Vec<OperationTime> {
        self.pool.times().read()
    }
}

//! Places in the bounded waiting queue. A request takes one before anything is spent on it, and gives it back when it starts to
//! answer or ends. It does not know lanes: their own bounds are the engine's.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use millrace_core::TenantId;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Why there is no place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoPlace {
    QueueFull,
    /// The tenant has as many as it may have.
    Tenant(u32),
}

/// Counts of one tenant's requests.
#[derive(Debug)]
struct TenantCount {
    waiting: AtomicU32,
    running: AtomicU32,
    max_waiting: u32,
    /// One permit per sequence that may be in an engine; `None`: no bound of its own.
    engine: Option<Arc<Semaphore>>,
}

/// All places.
#[derive(Debug)]
pub(crate) struct Admission {
    waiting: AtomicU32,
    running: AtomicU32,
    max_waiting: u32,
    tenants: Vec<TenantCount>,
}

/// Bounds of one tenant; `None` is none of its own.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TenantBounds {
    pub(crate) max_waiting: Option<u32>,
    pub(crate) max_running: Option<u32>,
}

/// A request's place; dropped with the request.
#[derive(Debug)]
pub(crate) struct Place {
    admission: Arc<Admission>,
    tenant: usize,
    running: bool,
    engine: Option<OwnedSemaphorePermit>,
}

impl Admission {
    pub(crate) fn new(max_waiting: u32, tenants: &[TenantBounds]) -> Arc<Self> {
        let tenants = tenants
            .iter()
            .map(|bounds| TenantCount {
                waiting: AtomicU32::new(0),
                running: AtomicU32::new(0),
                max_waiting: bounds.max_waiting.unwrap_or(u32::MAX),
                engine: bounds.max_running.map(|n| Arc::new(Semaphore::new((n as usize).min(Semaphore::MAX_PERMITS)))),
            })
            .collect();
        Arc::new(Self { waiting: AtomicU32::new(0), running: AtomicU32::new(0), max_waiting, tenants })
    }

    /// # Errors
    /// Where the queue or the tenant is full; nothing is taken then.
    pub(crate) fn enter(self: &Arc<Self>, tenant: TenantId) -> Result<Place, NoPlace> {
        let index = tenant.0 as usize;
        let count = self.tenants.get(index).ok_or(NoPlace::Tenant(0))?;
        take(&self.waiting, self.max_waiting).ok_or(NoPlace::QueueFull)?;
        if take(&count.waiting, count.max_waiting).is_none() {
            give(&self.waiting);
            return Err(NoPlace::Tenant(count.max_waiting));
        }
        Ok(Place { admission: self.clone(), tenant: index, running: false, engine: None })
    }

    /// Waiting and running requests of a tenant.
    pub(crate) fn of_tenant(&self, index: usize) -> (u32, u32) {
        self.tenants.get(index).map_or((0, 0), |t| (t.waiting.load(Ordering::Acquire), t.running.load(Ordering::Acquire)))
    }

    pub(crate) fn waiting(&self) -> u32 {
        self.waiting.load(Ordering::Acquire)
    }

    pub(crate) fn running(&self) -> u32 {
        self.running.load(Ordering::Acquire)
    }
}

impl Place {
    /// Waits, in order of arrival, until the tenant may have one more sequence in an engine.
    pub(crate) async fn may_run(&mut self) {
        let tenant = self.admission.tenants.get(self.tenant);
        if let Some(engine) = tenant.and_then(|t| t.engine.clone())
            && self.engine.is_none()
        {
            // The semaphore is never closed, so this cannot fail.
            self.engine = engine.acquire_owned().await.ok();
        }
    }

    /// The request has its first token: its place in the queue is free.
    pub(crate) fn run(&mut self) {
        let Some(tenant) = self.admission.tenants.get(self.tenant).filter(|_| !self.running) else { return };
        self.running = true;
        tenant.running.fetch_add(1, Ordering::AcqRel);
        self.admission.running.fetch_add(1, Ordering::AcqRel);
        give(&tenant.waiting);
        give(&self.admission.waiting);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let Some(tenant) = self.admission.tenants.get(self.tenant) else { return };
        if self.running {
            give(&tenant.running);
            give(&self.admission.running);
        } else {
            give(&tenant.waiting);
            give(&self.admission.waiting);
        }
    }
}

fn take(count: &AtomicU32, limit: u32) -> Option<()> {
    count.fetch_update(Ordering::AcqRel, Ordering::Acquire, |n| if n < limit { n.checked_add(1) } else { None }).ok().map(|_| ())
}

fn give(count: &AtomicU32) {
    let before = count.fetch_sub(1, Ordering::AcqRel);
    debug_assert!(before > 0, "a place was given back twice");
}

#[cfg(test)]
mod tests {
    use super::*;

    const FREE: TenantBounds = TenantBounds { max_waiting: None, max_running: None };

    #[test]
    fn the_queue_is_bounded_and_places_come_back() {
        let admission = Admission::new(2, &[FREE]);
        let first = admission.enter(TenantId(0)).unwrap();
        let mut second = admission.enter(TenantId(0)).unwrap();
        assert_eq!(admission.enter(TenantId(0)).unwrap_err(), NoPlace::QueueFull);
        second.run();
        second.run();
        assert_eq!((admission.waiting(), admission.running()), (1, 1));
        drop(admission.enter(TenantId(0)).unwrap());
        drop((first, second));
        assert_eq!((admission.waiting(), admission.running(), admission.of_tenant(0)), (0, 0, (0, 0)));
    }

    #[test]
    fn a_full_tenant_leaves_the_others_their_places() {
        let one = TenantBounds { max_waiting: Some(1), max_running: None };
        let admission = Admission::new(8, &[one, FREE]);
        let mut a = admission.enter(TenantId(0)).unwrap();
        assert_eq!(admission.enter(TenantId(0)).unwrap_err(), NoPlace::Tenant(1));
        a.run();
        let _b = admission.enter(TenantId(0)).unwrap();
        assert_eq!(admission.enter(TenantId(0)).unwrap_err(), NoPlace::Tenant(1));
        assert_eq!(admission.waiting(), 1, "a refusal keeps nothing");
        assert!(admission.enter(TenantId(1)).is_ok());
        assert_eq!(admission.enter(TenantId(9)).unwrap_err(), NoPlace::Tenant(0));
    }

    #[tokio::test]
    async fn a_tenant_has_only_so_many_sequences_in_an_engine() {
        let admission = Admission::new(8, &[TenantBounds { max_waiting: None, max_running: Some(1) }]);
        let mut first = admission.enter(TenantId(0)).unwrap();
        first.may_run().await;
        let mut second = admission.enter(TenantId(0)).unwrap();
        let waits = tokio::time::timeout(std::time::Duration::from_millis(20), second.may_run()).await;
        assert!(waits.is_err(), "the second sequence waits for the first");
        drop(first);
        second.may_run().await;
        assert!(second.engine.is_some());
    }

    #[test]
    fn many_threads_never_pass_the_bound() {
        let admission = Admission::new(7, &[FREE]);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for i in 0..2_000 {
                        if let Ok(mut place) = admission.enter(TenantId(0)) {
                            assert!(admission.waiting() <= 7);
                            if i % 3 == 0 {
                                place.run();
                            }
                        }
                    }
                });
            }
        });
        assert_eq!((admission.waiting(), admission.running()), (0, 0));
    }
}

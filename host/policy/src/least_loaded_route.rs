//! The native route: the eligible lane with the least work. It does not know tenants, sessions or prefixes.

use crate::validate::{is_eligible, no_lane};
use crate::{Decision, Forward, Policy, PolicyFault, RoutePolicy, RouteRequest, Table, kind};

/// Eligible lanes by sequences waiting and running, then KV in use, then row.
#[derive(Debug, Clone, Copy, Default)]
pub struct LeastLoadedRoute;

impl LeastLoadedRoute {
    /// A valid decision for every table; 503 where no lane is eligible.
    #[must_use]
    pub fn route(&self, lanes: &Table) -> Decision {
        let mut rows: Vec<u32> = (0..lanes.rows).filter(|&row| is_eligible(lanes, row)).collect();
        if rows.is_empty() {
            return Decision::Refuse(no_lane());
        }
        rows.sort_by_key(|&row| {
            let fact = |kind| u64::from(lanes.value(kind, row as usize).unwrap_or(0));
            (fact(kind::LANE_WAITING) + fact(kind::LANE_RUNNING), fact(kind::KV_USED_PER_MILLE))
        });
        Decision::Forward(Forward { lanes: rows, priority: None, reason: 0 })
    }
}

impl Policy for LeastLoadedRoute {}

impl RoutePolicy for LeastLoadedRoute {
    fn decide(&mut self, _: &RouteRequest, lanes: &Table, _: &Table) -> Result<Decision, PolicyFault> {
        Ok(self.route(lanes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lanes() -> Table {
        Table::new(4)
            .with(kind::LANE_WAITING, vec![1, 0, 0, 0])
            .with(kind::LANE_RUNNING, vec![2, 3, 3, 0])
            .with(kind::KV_USED_PER_MILLE, vec![100, 900, 200, 0])
    }

    #[test]
    fn orders_by_load_then_kv_then_row() {
        let Decision::Forward(forward) = LeastLoadedRoute.route(&lanes()) else { panic!("refused") };
        assert_eq!(forward.lanes, [3, 0, 2, 1]);
    }

    #[test]
    fn takes_eligible_lanes_only_and_eligible_goes_before_healthy() {
        let unhealthy = lanes().with(kind::HEALTHY, vec![1, 1, 0, 0]);
        let Decision::Forward(forward) = LeastLoadedRoute.route(&unhealthy) else { panic!("refused") };
        assert_eq!(forward.lanes, [0, 1]);
        let Decision::Forward(forward) = LeastLoadedRoute.route(&unhealthy.with(kind::ELIGIBLE, vec![0, 1, 0, 0])) else {
            panic!("refused")
        };
        assert_eq!(forward.lanes, [1]);
    }

    #[test]
    fn refuses_with_503_when_no_lane_is_eligible() {
        for table in [Table::new(0), lanes().with(kind::HEALTHY, vec![0, 0, u32::MAX, 2])] {
            let Decision::Refuse(refusal) = LeastLoadedRoute.route(&table) else { panic!("forwarded") };
            assert_eq!(refusal.status, 503);
        }
    }
}

//! Rounds: one run of each way in which decode is built, in an order that changes from round to round. Knows no unit and no report.

use anyhow::Result;
use millrace_core::{LaneId, TenantId};
use millrace_kv::PrefixScope;

use super::baseline::Baseline;
use crate::bench::lane::{Ask, BenchLane, Run, Streams};

/// Whose prompts are kept.
const SCOPE: PrefixScope = PrefixScope([1; 32]);

/// How tags are built and switched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    On,
    Off,
    /// Compiled out.
    Out,
}

/// Every order of the ways, each way equally often in each place.
const ORDERS: [[Way; 3]; 6] = [
    [Way::On, Way::Off, Way::Out],
    [Way::Out, Way::Off, Way::On],
    [Way::Off, Way::Out, Way::On],
    [Way::On, Way::Out, Way::Off],
    [Way::Off, Way::On, Way::Out],
    [Way::Out, Way::On, Way::Off],
];

/// What each run of one way gave, round after round.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Figures {
    pub(super) tokens_per_second: Vec<f64>,
    pub(super) itl_p95_us: Vec<f64>,
}

impl Figures {
    fn push(&mut self, (tokens_per_second, itl_p95_us): (f64, f64)) {
        self.tokens_per_second.push(tokens_per_second);
        self.itl_p95_us.push(itl_p95_us);
    }
}

/// The figures of all ways.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Rounds {
    pub(super) on: Figures,
    pub(super) off: Figures,
    /// None without a baseline.
    pub(super) out: Option<Figures>,
}

impl Rounds {
    /// A round that warms up, and `rounds` that count.
    ///
    /// # Errors
    /// The engine's, or what the baseline said.
    pub(super) fn run(
        streams: Streams,
        rounds: usize,
        (lane, mut baseline): (&BenchLane, Option<&mut Baseline>),
    ) -> Result<Self> {
        let mut figures = Self { out: baseline.is_some().then(Figures::default), ..Self::default() };
        for round in 0..=rounds {
            for way in ORDERS[round % ORDERS.len()] {
                let (ran, into) = match (way, baseline.as_deref_mut(), &mut figures.out) {
                    (Way::On, ..) => (both(&decode(lane, LaneId(0), streams)?), &mut figures.on),
                    (Way::Off, ..) => (both(&decode(lane, LaneId(1), streams)?), &mut figures.off),
                    (Way::Out, Some(baseline), Some(out)) => (baseline.run(streams)?, out),
                    (Way::Out, ..) => continue,
                };
                if round > 0 {
                    into.push(ran);
                }
            }
        }
        Ok(figures)
    }
}

fn both(run: &Run) -> (f64, f64) {
    (run.tokens_per_second, run.itl_p95_us)
}

/// One run in a lane. What the streams' prompts have in common is put into the prefix tree before, or the first ones of many that come
/// together would all compute it.
pub(super) fn decode(lane: &BenchLane, way: LaneId, Streams { batch, depth, output }: Streams) -> Result<Run> {
    let ids = lane.ids();
    let ask = |stream: usize| {
        let prompt = ids.stream(stream as u64, depth);
        Ask { lane: way, tenant: TenantId(0), scope: Some(SCOPE), prompt, output }
    };
    lane.first(Ask { output: 1, ..ask(batch) })?;
    lane.decode_in(way, output, (0..batch).map(ask))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_is_in_every_place_equally_often() {
        for way in [Way::On, Way::Off, Way::Out] {
            let in_place = |place: usize| ORDERS.iter().filter(|order| order[place] == way).count();
            assert_eq!([0, 1, 2].map(in_place), [2, 2, 2], "{way:?}");
        }
        // Without a baseline, on and off lead equally often too.
        let leads = ORDERS.iter().filter(|order| order.iter().find(|way| **way != Way::Out) == Some(&Way::On)).count();
        assert_eq!(leads, 3);
    }
}

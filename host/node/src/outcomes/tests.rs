//! Who is told what: each slot its own rows, no policy that does not want it, and no more at a time than is allowed.

use std::sync::Mutex;

use millrace_policy::{
    Ask, BreakerSettings, Choice, Decision, FairSchedule, LeastLoadedRoute, Policy, PolicyFault, PolicyInfo, PrecisionPolicy,
    PrecisionSlot, RouteLimits, RoutePolicy, RouteRequest, RouteSlot, ScheduleSlot, TierPrecision,
};

use super::*;

#[derive(Clone, Default)]
struct Hearing(Arc<Mutex<Vec<Table>>>);

impl Hearing {
    fn heard(&self) -> Vec<Table> {
        self.0.lock().unwrap().clone()
    }
}

impl Policy for Hearing {
    fn observes(&self) -> bool {
        true
    }

    fn observe(&mut self, outcomes: &Table) -> Result<(), PolicyFault> {
        self.0.lock().unwrap().push(outcomes.clone());
        Ok(())
    }
}

impl RoutePolicy for Hearing {
    fn decide(&mut self, _: &RouteRequest, lanes: &Table, _: &Table) -> Result<Decision, PolicyFault> {
        Ok(LeastLoadedRoute.route(lanes))
    }
}

impl PrecisionPolicy for Hearing {
    fn choose(&mut self, asks: &[Ask], _: &Table, _: &Table) -> Result<Vec<Choice>, PolicyFault> {
        Ok(asks.iter().map(|_| Choice { precision: 0, may_downgrade: false, reason: 0 }).collect())
    }
}

/// Route and precision hear, the schedule does not.
fn slots() -> (Slots, Hearing, Hearing) {
    let (route, precision) = (Hearing::default(), Hearing::default());
    let (info, breaker) = (PolicyInfo::native("hears"), BreakerSettings::default());
    let slots = Slots {
        precision: Arc::new(PrecisionSlot::new(Box::new(precision.clone()), info.clone(), breaker, TierPrecision::default())),
        route: Arc::new(RouteSlot::new(Box::new(route.clone()), info.clone(), breaker, RouteLimits::default())),
        schedule: Arc::new(ScheduleSlot::new(Box::new(FairSchedule), info, breaker)),
    };
    (slots, route, precision)
}

fn ended(lane: u32, by: Deciders) -> Ended {
    let tenant = TenantId(3);
    let told = Told { tenant, priority: -2, lane, precision: 1, prompt_tokens: 40, max_output_tokens: 8, by };
    Ended {
        told,
        outcome: Outcome::Length,
        cached_tokens: 32,
        output_tokens: 8,
        queued: None,
        first_token: Some(Duration::from_micros(700)),
        total: Duration::from_secs(1 << 20),
    }
}

#[test]
fn each_policy_hears_of_its_own_decisions_with_its_own_reasons() {
    let (slots, route, precision) = slots();
    let by = |precision, route| Deciders { precision, route, schedule: 1 };
    let batch =
        [ended(0, by(Some((1, 7)), Some((1, 9)))), ended(1, by(None, Some((1, 0)))), ended(2, by(Some((4, 1)), Some((2, 1))))];
    tell(&slots, 0, &batch);
    let heard = route.heard();
    assert_eq!(heard.len(), 1);
    assert_eq!(heard[0].column(kind::OUTCOME_LANE), Some(&[0, 1][..]), "the last one was decided by another generation");
    assert_eq!(heard[0].column(kind::OUTCOME_REASON), Some(&[9, 0][..]));
    assert_eq!(heard[0].column(kind::PRIORITY), Some(&[(-2_i32).cast_unsigned(); 2][..]));
    for (kind, value) in [
        (kind::TENANT, 3),
        (kind::PROMPT_TOKENS, 40),
        (kind::CACHED_TOKENS, 32),
        (kind::OUTPUT_TOKENS, 8),
        (kind::MAX_OUTPUT_TOKENS, 8),
        (kind::OUTCOME, 1),
        (kind::OUTCOME_PRECISION, 1),
        (kind::OUTCOME_QUEUED_US, u32::MAX),
        (kind::OUTCOME_TTFT_US, 700),
        (kind::OUTCOME_TOTAL_US, u32::MAX - 1),
    ] {
        assert_eq!(heard[0].column(kind), Some(&[value; 2][..]), "{kind}");
    }
    let heard = precision.heard();
    assert_eq!((heard.len(), heard[0].rows, heard[0].column(kind::OUTCOME_REASON)), (1, 1, Some(&[7][..])));
}

#[test]
fn ends_come_in_batches_and_what_is_too_much_is_dropped_and_counted() {
    struct Still;
    impl Clock for Still {
        fn now_us(&self) -> u64 {
            0
        }
    }
    let (slots, route, _) = slots();
    let outcomes = Outcomes::start(slots, Arc::new(Still)).unwrap();
    let flood = 3 * QUEUE as u64;
    let began = Instant::now();
    for _ in 0..flood {
        outcomes.ended(ended(0, Deciders { precision: None, route: Some((1, 0)), schedule: 1 }));
    }
    assert!(began.elapsed() < Duration::from_secs(5), "nobody waits");
    assert!(outcomes.dropped() >= QUEUE as u64, "{}", outcomes.dropped());
    std::thread::sleep(4 * PAUSE);
    let heard = route.heard();
    assert!(!heard.is_empty() && heard.iter().all(|table| (1..=MAX_ROWS as u32).contains(&table.rows)), "{}", heard.len());
    let most = began.elapsed().as_millis() / PAUSE.as_millis() + 1;
    assert!(heard.len() as u128 <= most, "{} calls in {:?}", heard.len(), began.elapsed());
}

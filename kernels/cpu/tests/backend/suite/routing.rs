//! RouteRows against its definition in f64, and the routing buffers that the experts' tests share.

use millrace_ops::{Buffer, ExpertBuffers, Op, RouteRows, RouteRule, RouteScoring};

use super::Rig;

pub(crate) const PLAIN: RouteRule =
    RouteRule { scoring: RouteScoring::Softmax, groups: 1, top_groups: 1, normalize: true, scale: 1.0 };
const GROUPED: RouteRule = RouteRule { scoring: RouteScoring::Sigmoid, groups: 8, top_groups: 4, normalize: true, scale: 2.5 };

/// How many experts there are and how many each row takes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Choice {
    pub(crate) experts: usize,
    pub(crate) top_k: usize,
}

pub(crate) fn suite(rig: &mut Rig<'_>) {
    let one_each = RouteRule { groups: 12, top_groups: 5, normalize: false, ..GROUPED };
    for (choice, rule, biased) in [
        (Choice { experts: 8, top_k: 2 }, PLAIN, false),
        (Choice { experts: 64, top_k: 8 }, GROUPED, true),
        (Choice { experts: 256, top_k: 8 }, GROUPED, false),
        (Choice { experts: 16, top_k: 8 }, RouteRule { scoring: RouteScoring::Softmax, ..GROUPED }, true),
        (Choice { experts: 5, top_k: 5 }, RouteRule { normalize: false, ..PLAIN }, false),
        (Choice { experts: 12, top_k: 5 }, one_each, true),
        (Choice { experts: 1, top_k: 1 }, PLAIN, false),
        (Choice { experts: 4096, top_k: 9 }, RouteRule { groups: 64, ..GROUPED }, true),
    ] {
        for rows in [0, 1, 4, 5, 100] {
            let bias = biased.then(|| rig.random.floats(choice.experts));
            let logits: Vec<f32> = rig.random.floats(rows * choice.experts).iter().map(|v| v * 4.0).collect();
            check(rig, choice, &rule, &logits, bias.as_deref());
        }
        ties_and_what_is_no_number(rig, choice, &rule);
    }
    batch_independence(rig);
}

/// Few different logits, then NaN among them, then nothing else.
fn ties_and_what_is_no_number(rig: &mut Rig<'_>, choice: Choice, rule: &RouteRule) {
    let count = 20 * choice.experts;
    let mut logits: Vec<f32> = (0..count).map(|_| rig.random.below(3) as f32).collect();
    check(rig, choice, rule, &logits, None);
    logits.iter_mut().for_each(|logit| *logit = if rig.random.below(8) == 0 { f32::NAN } else { *logit });
    logits[..choice.experts].fill(f32::NAN);
    logits[choice.experts..2 * choice.experts].fill(f32::NEG_INFINITY);
    check(rig, choice, rule, &logits, None);
    let bias: Vec<f32> = (0..choice.experts).map(|expert| if expert % 3 == 1 { f32::NAN } else { 0.0 }).collect();
    check(rig, choice, rule, &logits, Some(&bias));
}

/// Routing buffers for `rows` rows that hold nothing that makes sense.
pub(crate) fn buffers(rig: &mut Rig<'_>, Choice { experts, top_k }: Choice, rows: usize) -> ExpertBuffers {
    let mut words = |count: usize| rig.words(&vec![u32::MAX; count]);
    let slots = rows * top_k;
    let [ids, weights, slots, slot_rows] = [slots; 4].map(&mut words);
    ExpertBuffers { experts, top_k, ids, weights, slots, slot_rows, starts: words(experts + 1) }
}

/// Slot of each choice, row of each slot and first slot of each expert, from the experts that rows chose.
pub(crate) fn grouped(Choice { experts, top_k }: Choice, ids: &[u32]) -> (Vec<u32>, Vec<u32>, Vec<u32>) {
    let mut order: Vec<usize> = (0..ids.len()).collect();
    order.sort_by_key(|choice| (ids[*choice], choice / top_k));
    let mut slots = vec![0; ids.len()];
    for (slot, choice) in order.iter().enumerate() {
        slots[*choice] = slot as u32;
    }
    let slot_rows = order.iter().map(|choice| (choice / top_k) as u32).collect();
    let starts = (0..=experts).map(|expert| ids.iter().filter(|id| (**id as usize) < expert).count() as u32).collect();
    (slots, slot_rows, starts)
}

/// Routing buffers that say what `ids` and `weights` do.
pub(crate) fn routed(rig: &mut Rig<'_>, choice: Choice, ids: &[u32], weights: &[f32]) -> ExpertBuffers {
    let (slots, slot_rows, starts) = grouped(choice, ids);
    let mut words = |words: &[u32]| rig.words(words);
    let [ids, slots, slot_rows, starts] = [ids, &slots, &slot_rows, &starts].map(&mut words);
    let bits: Vec<u32> = weights.iter().map(|weight| weight.to_bits()).collect();
    ExpertBuffers { experts: choice.experts, top_k: choice.top_k, ids, weights: words(&bits), slots, slot_rows, starts }
}

/// NaN as what is below everything else.
fn merit(value: f64) -> f64 {
    if value.is_nan() { f64::NEG_INFINITY } else { value }
}

/// Places in order of falling merit, equal ones in order.
fn ranked(merits: &[f64]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..merits.len()).collect();
    order.sort_by(|a, b| merit(merits[*b]).total_cmp(&merit(merits[*a])));
    order
}

fn scores(rule: &RouteRule, logits: &[f32]) -> Vec<f64> {
    let logits = logits.iter().map(|logit| f64::from(*logit));
    match rule.scoring {
        RouteScoring::Sigmoid => logits.map(|logit| 1.0 / (1.0 + (-logit).exp())).collect(),
        RouteScoring::Softmax => {
            let powers: Vec<f64> = logits.map(f64::exp).collect();
            let sum: f64 = powers.iter().sum();
            powers.iter().map(|power| power / sum).collect()
        }
    }
}

/// A row's experts and weights by the definition.
fn defined(choice: Choice, rule: &RouteRule, logits: &[f32], bias: Option<&[f32]>) -> (Vec<u32>, Vec<f64>) {
    let scores = scores(rule, logits);
    let mut merits: Vec<f64> = scores.clone();
    if let Some(bias) = bias {
        merits.iter_mut().zip(bias).for_each(|(merit, bias)| *merit += f64::from(*bias));
    }
    let size = choice.experts / rule.groups;
    let group_merit = |members: &[f64]| ranked(members).iter().take(2).map(|member| members[*member]).sum::<f64>();
    let group_merits: Vec<f64> = merits.chunks(size).map(group_merit).collect();
    let groups = &ranked(&group_merits)[..rule.top_groups];
    let experts = ranked(&merits).into_iter().filter(|expert| groups.contains(&(expert / size)));
    let ids: Vec<usize> = experts.take(choice.top_k).collect();
    let weights: Vec<f64> = ids.iter().map(|id| scores[*id]).collect();
    let sum = match (rule.normalize, rule.scoring) {
        (false, _) => 1.0,
        (true, RouteScoring::Softmax) => weights.iter().sum(),
        (true, RouteScoring::Sigmoid) => weights.iter().sum::<f64>() + 1e-20,
    };
    let weights = weights.iter().map(|weight| weight / sum * f64::from(rule.scale)).collect();
    (ids.iter().map(|id| *id as u32).collect(), weights)
}

pub(crate) fn route(rig: &mut Rig<'_>, op: RouteRows) -> (Vec<u32>, Vec<f32>) {
    let (to, count) = (op.to.clone(), op.rows * op.to.top_k);
    rig.run([Op::RouteRows(op)]);
    (rig.read_words(&to.ids)[..count].to_vec(), rig.read_floats(&to.weights)[..count].to_vec())
}

fn optional(rig: &mut Rig<'_>, values: Option<&[f32]>) -> Option<Buffer> {
    values.map(|values| rig.floats(values))
}

fn check(rig: &mut Rig<'_>, choice: Choice, rule: &RouteRule, logits: &[f32], bias: Option<&[f32]>) {
    let rows = logits.len() / choice.experts;
    let what = format!("{rows} rows, {choice:?}, {rule:?}");
    let to = buffers(rig, choice, rows);
    let bias_buffer = optional(rig, bias);
    let logits_buffer = rig.floats(logits);
    let op = RouteRows { logits: logits_buffer, bias: bias_buffer, rule: *rule, to: to.clone(), rows };
    let (ids, weights) = route(rig, op);
    for (row, logits) in logits.chunks(choice.experts).enumerate() {
        let (want_ids, want_weights) = defined(choice, rule, logits, bias);
        let at = row * choice.top_k..(row + 1) * choice.top_k;
        assert_eq!(ids[at.clone()], want_ids, "{what}: row {row}: {logits:?}");
        for (got, want) in weights[at].iter().zip(&want_weights) {
            let error = (f64::from(*got) - want).abs();
            assert!(error <= 1e-6 * want || (got.is_nan() && want.is_nan()), "{what}: row {row}: {got}, want {want}");
        }
    }
    let (slots, slot_rows, starts) = grouped(choice, &ids);
    assert_eq!(rig.read_words(&to.slots)[..ids.len()], slots, "{what}");
    assert_eq!(rig.read_words(&to.slot_rows)[..ids.len()], slot_rows, "{what}");
    assert_eq!(rig.read_words(&to.starts), starts, "{what}");
}

fn batch_independence(rig: &mut Rig<'_>) {
    let (choice, rows) = (Choice { experts: 64, top_k: 8 }, 30);
    let logits = rig.random.floats(rows * choice.experts);
    let (bias, to) = (optional(rig, Some(&[0.25; 64])), buffers(rig, choice, rows));
    let buffer = rig.floats(&logits);
    let op = RouteRows { logits: buffer, bias, rule: GROUPED, to, rows };
    let whole = route(rig, op.clone());
    for row in 0..rows {
        let buffer = rig.floats(&logits[row * choice.experts..(row + 1) * choice.experts]);
        let alone = route(rig, RouteRows { logits: buffer, rows: 1, ..op.clone() });
        let at = row * choice.top_k..(row + 1) * choice.top_k;
        assert_eq!((&alone.0[..], &alone.1[..]), (&whole.0[at.clone()], &whole.1[at]), "row {row}");
    }
}

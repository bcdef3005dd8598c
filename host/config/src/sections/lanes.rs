//! `[lane.NAME]`: which prefill pool hands off to which decode pool.

use millrace_core::{LaneId, PoolId, Stage};

use super::missing_table;
use super::pools::{self, PoolRow};
use crate::defaults::{LANE_KL_MICRONAT, LANE_MAX_WAITING};
use crate::reader::Section;
use crate::{ErrorKind, Lane};

const KIND: &str = "lane";

pub(super) fn read<'t>(root: &mut Section<'_, 't>, pools: &[PoolRow<'t>]) -> Vec<Lane> {
    let tables = root.named(KIND);
    if tables.is_empty() {
        missing_table(
            root,
            KIND,
            "no request could be served",
            "`[lane.NAME]` with `prefill` and `decode`, each the name of a pool",
        );
    }
    let mut lanes: Vec<Lane> = Vec::new();
    let mut used = vec![false; pools.len()];
    let mut all_resolved = !tables.is_empty();
    for table in tables {
        let mut section = root.open(KIND, &table);
        let prefill = pool(&mut section, "prefill", Stage::Prefill, pools);
        let decode = pool(&mut section, "decode", Stage::Decode, pools);
        let ends = prefill.zip(decode);
        all_resolved &= ends.is_some();
        for row in [prefill, decode].into_iter().flatten() {
            used[row] = true;
        }
        if let Some((prefill, decode)) = ends {
            check_ends(&mut section, &pools[prefill], &pools[decode]);
        }
        let id = |row: Option<usize>| PoolId(row.and_then(|row| u32::try_from(row).ok()).unwrap_or(0));
        let lane = Lane {
            name: table.name.clone(),
            prefill: id(prefill),
            decode: id(decode),
            max_waiting: section.count("max_waiting", LANE_MAX_WAITING),
            kl_micronat: section.count_or_none("kl_micronat", LANE_KL_MICRONAT),
        };
        let twin = lanes.iter().find(|other| ends.is_some() && (other.prefill, other.decode) == (lane.prefill, lane.decode));
        if let Some(twin) = twin {
            let message = format!("has the pools of lane `{}`", twin.name);
            section.error_here(ErrorKind::Conflict, message, "remove one of the two lanes or name other pools");
        }
        section.finish();
        lanes.push(lane);
    }
    // With a name unresolved, the pool that was meant would be reported too.
    if all_resolved {
        report_unused(root, pools, &used);
    }
    lanes
}

/// The row of a pool of the right stage.
fn pool(section: &mut Section<'_, '_>, key: &'static str, wanted: Stage, pools: &[PoolRow<'_>]) -> Option<usize> {
    let names: Vec<&str> = pools.iter().map(|row| row.pool.name.as_str()).collect();
    let fitting: Vec<&str> = pools.iter().filter(|row| row.stage == Some(wanted)).map(|row| row.pool.name.as_str()).collect();
    if !section.has(key) {
        let example = fitting.first().unwrap_or(&"POOL");
        section.required_text(key, example);
        return None;
    }
    let row = section.reference(key, &names)?;
    let Some(other) = pools.get(row).and_then(|row| row.stage).filter(|&stage| stage != wanted) else { return Some(row) };
    let message = format!("pool `{}` is a {other} pool", names[row]);
    let hint = if fitting.is_empty() {
        format!("add a pool with `stage = \"{wanted}\"`")
    } else {
        format!("use a {wanted} pool: {}", fitting.join(", "))
    };
    section.error(ErrorKind::Conflict, key, message, &hint);
    None
}

/// What both ends of a hand-off have in common.
fn check_ends(section: &mut Section<'_, '_>, prefill: &PoolRow<'_>, decode: &PoolRow<'_>) {
    if !(prefill.sound && decode.sound) {
        return;
    }
    let (from, to) = (&prefill.pool, &decode.pool);
    if from.page_tokens != to.page_tokens {
        let message = format!(
            "pool `{}` has pages of {} tokens, pool `{}` of {}; a hand-off moves whole pages",
            from.name, from.page_tokens, to.name, to.page_tokens
        );
        section.error_here(ErrorKind::Conflict, message, "give both pools the same page_tokens");
    }
    if from.process != to.process {
        let (apart, within) = if from.process { (from, to) } else { (to, from) };
        let message = format!("pool `{}` is a process of its own, pool `{}` is not", apart.name, within.name);
        section.error_here(ErrorKind::Conflict, message, "set `process` alike in both pools of a lane");
    }
    if !from.process && !to.process && from.device != to.device {
        let message = format!(
            "pools `{}` and `{}` are on different devices, and a hand-off within the server needs one",
            from.name, to.name
        );
        section.error_here(ErrorKind::Conflict, message, "give both the same `device`, or set `process = true` in both");
    }
    if from.process && !from.kv.becomes(to.kv) && from.page_tokens == to.page_tokens {
        let message = format!("{} pages of pool `{}` cannot become {} pages of pool `{}`", from.kv, from.name, to.kv, to.name);
        section.error_here(ErrorKind::Conflict, message, "give decode the format of prefill or a narrower one");
    }
    if from.model != to.model {
        let message = format!("pools `{}` and `{}` have different models", from.name, to.name);
        section.error_here(ErrorKind::Conflict, message, "name two pools of one model");
    }
}

/// A pool takes its memory whether or not a lane leads to it.
fn report_unused<'t>(root: &mut Section<'_, 't>, pools: &[PoolRow<'t>], used: &[bool]) {
    for (row, _) in pools.iter().zip(used).filter(|&(_, &used)| !used) {
        let message = "no lane uses this pool".to_owned();
        root.open(pools::KIND, &row.table).error_here(ErrorKind::Conflict, message, "name it in a lane or remove it");
    }
}

/// The rows of lanes by name, for whoever refers to lanes.
pub(super) fn id_of(row: usize) -> LaneId {
    LaneId(u32::try_from(row).unwrap_or(u32::MAX))
}

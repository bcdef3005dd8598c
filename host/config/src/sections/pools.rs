//! `[pool.NAME]`: what can be said of a pool without its model. Whether its memory holds a page is the node's to find out.

use millrace_core::{KvFormat, Stage, StageRecipe};

use super::{Base, missing_table};
use crate::defaults::{
    MAX_SEQUENCES, MAX_STEP_TOKENS, MAX_STEP_US, PAGE_TOKENS, PAGE_TOKENS_MULTIPLE, POOL_MEMORY_MIB, POOL_PAGES,
    PREFIX_TENANT_PERCENT,
};
use crate::reader::{Named, Section};
use crate::{Device, ErrorKind, Model, Pool, PoolSize, Tenant, ZeroFreed};

pub(super) const KIND: &str = "pool";

/// A pool and what the checks between sections need to know of it.
pub(super) struct PoolRow<'t> {
    pub(super) pool: Pool,
    pub(super) table: Named<'t>,
    /// `None`: not given, or no stage.
    pub(super) stage: Option<Stage>,
    /// Nothing in its table was wrong, so that its values are those of the text.
    pub(super) sound: bool,
}

pub(super) fn read<'t>(root: &mut Section<'_, 't>, models: &[Model], devices: &[Device], base: &Base) -> Vec<PoolRow<'t>> {
    let tables = root.named(KIND);
    if tables.is_empty() {
        missing_table(root, KIND, "no engine could run", "a `[pool.NAME]` with `stage = \"prefill\"` and one with \"decode\"");
    }
    let names = Names {
        models: models.iter().map(|model| model.table.as_str()).collect(),
        devices: devices.iter().map(|device| device.name.as_str()).collect(),
        base,
    };
    let mut rows = Vec::new();
    for table in tables {
        let mut section = root.open(KIND, &table);
        let (pool, stage) = pool(&mut section, &table.name, &names);
        check_room(&mut section, &pool, models.get(pool.model));
        let sound = section.finish();
        rows.push(PoolRow { pool, table, stage, sound });
    }
    rows
}

/// What a pool may refer to.
struct Names<'a> {
    models: Vec<&'a str>,
    devices: Vec<&'a str>,
    base: &'a Base,
}

fn pool(section: &mut Section<'_, '_>, name: &str, names: &Names<'_>) -> (Pool, Option<Stage>) {
    const RECIPES: [(&str, StageRecipe); 5] = [
        ("stored", StageRecipe::Stored),
        ("bf16", StageRecipe::Bf16),
        ("fp8", StageRecipe::Fp8),
        ("int8", StageRecipe::Int8),
        ("int4", StageRecipe::Int4),
    ];
    const FORMATS: [(&str, KvFormat); 3] = [("bf16", KvFormat::Bf16), ("fp8", KvFormat::Fp8), ("f32", KvFormat::F32)];
    const ZEROING: [(&str, ZeroFreed); 3] =
        [("auto", ZeroFreed::Auto), ("always", ZeroFreed::Always), ("never", ZeroFreed::Never)];
    let stage = section.required_choice("stage", &[("prefill", Stage::Prefill), ("decode", Stage::Decode)]);
    let pool = Pool {
        name: name.to_owned(),
        stage: stage.unwrap_or(Stage::Prefill),
        process: section.flag("process", false),
        device: section.reference("device", &names.devices).unwrap_or(0),
        model: section.reference("model", &names.models).unwrap_or(0),
        checkpoint: section.text("checkpoint", "model-int4").map(|path| names.base.join(&path)),
        recipe: section.choice("recipe", &RECIPES, StageRecipe::Stored),
        kv: section.choice("kv", &FORMATS, KvFormat::Bf16),
        size: size(section),
        page_tokens: page_tokens(section),
        max_step_tokens: section.count("max_step_tokens", MAX_STEP_TOKENS),
        max_step_us: max_step_us(section, stage),
        max_sequences: section.count("max_sequences", MAX_SEQUENCES),
        zero_freed: section.choice("zero_freed", &ZEROING, ZeroFreed::Auto),
        tags: section.flag("tags", true),
        prefix_cache: prefix_cache(section, stage),
        prefix_tenant_percent: section.count_or_none("prefix_tenant_percent", PREFIX_TENANT_PERCENT),
    };
    if pool.prefix_tenant_percent.is_some() && !pool.prefix_cache {
        let message = "says how much each tenant may have kept, but the pool keeps nothing".to_owned();
        section.error(ErrorKind::Conflict, "prefix_tenant_percent", message, "set prefix_cache = true, or remove this key");
    }
    if stage == Some(Stage::Decode) && pool.max_step_tokens < pool.max_sequences {
        let message = format!(
            "a decode step of {} tokens never holds all {} sequences, each of which takes one",
            pool.max_step_tokens, pool.max_sequences
        );
        section.error(ErrorKind::Conflict, "max_sequences", message, "raise max_step_tokens or lower max_sequences");
    }
    (pool, stage)
}

fn size(section: &mut Section<'_, '_>) -> PoolSize {
    let pages = section.count_or_none("pages", POOL_PAGES);
    let memory_given = section.has("memory_mib");
    let memory_mib = section.count("memory_mib", POOL_MEMORY_MIB);
    match pages {
        None => PoolSize::MemoryMib(memory_mib),
        Some(pages) => {
            if memory_given {
                let message = "says the size a second time, beside `memory_mib`".to_owned();
                section.error(ErrorKind::Conflict, "pages", message, "keep one of the two");
            }
            PoolSize::Pages(pages)
        }
    }
}

/// A decode step has one token of each sequence, so it cannot be cut without letting sequences wait.
fn max_step_us(section: &mut Section<'_, '_>, stage: Option<Stage>) -> Option<u32> {
    let max_step_us = section.count_or_none("max_step_us", MAX_STEP_US);
    if stage != Some(Stage::Decode) {
        return max_step_us;
    }
    if section.has("max_step_us") {
        let message = "bounds the chunks of prefill steps; a decode step has none".to_owned();
        section.error(ErrorKind::Conflict, "max_step_us", message, "remove it, or lower max_sequences for shorter decode steps");
    }
    None
}

/// Pages that decode wrote carry another precision's numbers, so prompts are kept where prefill wrote them.
fn prefix_cache(section: &mut Section<'_, '_>, stage: Option<Stage>) -> bool {
    let wanted = section.flag("prefix_cache", false);
    if wanted && stage == Some(Stage::Decode) {
        let message = "keeps prompts of prefill pools; a decode pool has none to keep".to_owned();
        section.error(ErrorKind::Conflict, "prefix_cache", message, "remove it here and set it in the lane's prefill pool");
    }
    wanted
}

fn page_tokens(section: &mut Section<'_, '_>) -> u32 {
    let tokens = section.count("page_tokens", PAGE_TOKENS);
    if !tokens.is_multiple_of(PAGE_TOKENS_MULTIPLE) {
        let below = tokens - tokens % PAGE_TOKENS_MULTIPLE;
        let message = format!("{tokens} is no multiple of {PAGE_TOKENS_MULTIPLE}");
        let hint = format!("use {below} or {}", below + PAGE_TOKENS_MULTIPLE);
        section.error(ErrorKind::Impossible, "page_tokens", message, &hint);
    }
    tokens
}

/// A pool that cannot hold one whole sequence would refuse the longest requests only when they come.
fn check_room(section: &mut Section<'_, '_>, pool: &Pool, model: Option<&Model>) {
    let (PoolSize::Pages(pages), Some(tokens)) = (pool.size, model.and_then(|model| model.max_model_tokens)) else { return };
    let room = u64::from(pages).saturating_mul(u64::from(pool.page_tokens));
    if room < u64::from(tokens) {
        let message = format!("{pages} pages of {} tokens hold less than the model's {tokens} tokens", pool.page_tokens);
        section.error(ErrorKind::Conflict, "pages", message, "raise pages or lower the model's max_model_tokens");
    }
}

/// A share without a page keeps nothing. Where memory says how large a pool is, the node finds out.
pub(super) fn check_shares<'t>(root: &mut Section<'_, 't>, pools: &[PoolRow<'t>], tenants: &[Tenant]) {
    for row in pools.iter().filter(|row| row.pool.prefix_cache) {
        let PoolSize::Pages(pages) = row.pool.size else { continue };
        if row.pool.prefix_share(pages, tenants.len()) == 0 {
            let message = format!("keeps nothing: the share of each of {} tenants in {pages} pages is no page", tenants.len());
            let hint = "raise pages or prefix_tenant_percent, or turn it off";
            root.open(KIND, &row.table).error(ErrorKind::Conflict, "prefix_cache", message, hint);
        }
    }
}

/// Pages that tenants share are overwritten when they are freed; that is not the operator's to turn off.
pub(super) fn check_zeroing<'t>(root: &mut Section<'_, 't>, pools: &[PoolRow<'t>], tenants: &[Tenant]) {
    for row in pools.iter().filter(|row| row.pool.zero_freed == ZeroFreed::Never && tenants.len() > 1) {
        let message = format!("`never`, but {} tenants share this pool's pages", tenants.len());
        root.open(KIND, &row.table).error(ErrorKind::Conflict, "zero_freed", message, "use \"auto\"");
    }
}

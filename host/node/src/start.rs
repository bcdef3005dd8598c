//! From a configuration to a running node: checkpoint, tokenizer, devices, models, policies, engine, in this order, so that what is
//! quick to refuse is refused first.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use millrace_config::{Config, Device, DeviceKind, Model, Pool, PoolSize};
use millrace_core::{Clock, Compute, KvFormat, LaneId, PoolId, StageRecipe};
use millrace_cpu::{CpuBackend, CpuCompute, CpuOptions};
use millrace_engine::{EngineSpec, LaneSpec, PoolSpec, TagChecks};
use millrace_kv::{PrefixOptions, ZeroFreed};
use millrace_model::{Architecture, Checkpoint, WeightCache};
use millrace_ops::{Backend, KvLayout, PlaneKind};
use millrace_scheduler::{StageLimits, TenantShare};
use millrace_tokenize::{ChatTemplate, Tokenizer};

use crate::admission::{Admission, TenantBounds};
use crate::checkpoints::{Checkpoints, expand_home};
use crate::control::Ready;
use crate::engines::Engines;
use crate::error::StartError;
use crate::fleet::{Fleet, Starting};
use crate::ids::{Ids, MonotonicClock, random_u64};
use crate::lanes::{Lanes, PoolFigures, tier};
use crate::metrics::Metrics;
use crate::node::{Inner, Node, ServedModel, unix_now_s};
use crate::outcomes::Outcomes;
use crate::policies::Policies;
use crate::policies::watch::{self, WatchList};
use crate::scopes::Scopes;
use crate::sessions::Sessions;
use crate::tenants::KeyRing;
use crate::tokenizer::tokenizer_of;

/// A chat template is a page of text.
const MAX_TEMPLATE_BYTES: u64 = 1 << 20;
/// A sequence that was preempted so often is preempted only when nothing else can give pages.
const MAX_PREEMPTIONS: u32 = 3;
/// Rows that a schedule policy is shown at once.
const MAX_VIEW_ROWS: u32 = 256;
/// What policies are told of a step's time before the first one.
const STEP_HINT_US: u32 = 10_000;

impl Node {
    /// Loads everything and starts the engine. Takes as long as the weights do; progress goes to the log.
    ///
    /// # Errors
    /// What could not be opened, loaded or allocated, with its name.
    pub fn start(config: &Config) -> Result<Self, StartError> {
        let clock: Arc<dyn Clock> = Arc::new(MonotonicClock::new());
        let model = config.models.first().ok_or(StartError::NoModel)?;
        let checkpoints = Checkpoints::open(config, model)?;
        let text = Text::load(checkpoints.own(), model)?;
        let watched = WatchList::of(config);
        // Components are small: a policy that is refused is told before the weights are read.
        let policies = Policies::load(config, clock.clone())?;
        let within: Vec<usize> = (0..config.pools.len()).filter(|&row| !config.pools[row].process).collect();
        let starting = Starting::all(config, clock.clone())?;
        let pools = load_pools(config, &checkpoints, &within)?;
        let known = known_pools(config, &pools, starting.fleet());
        let lanes = Lanes::new(config, &checkpoints.digest(), &known.iter().map(|pool| pool.figures).collect::<Vec<_>>());
        let context_tokens = context(model, &known, &lanes);
        let scopes = Scopes::new(config, &known).map_err(StartError::Random)?;
        let sessions = Sessions::new().map_err(StartError::Random)?;
        let page_tokens = config.pools.first().map_or(0, |pool| pool.page_tokens);
        let (homes, rows) = (lane_homes(config), pool_homes(config));
        let spec = EngineSpec {
            pools: pools.into_iter().map(|pool| PoolSpec { limits: bounded(pool.limits, context_tokens), ..pool }).collect(),
            lanes: lane_specs(config, &rows),
            tenants: shares(config),
            schedule: policies.schedule().clone(),
            clock: clock.clone(),
            boot_nonce: boot_nonce()?,
        };
        let engine = Engines::new(millrace_engine::start(spec)?, policies.reaching(starting.keep()), homes, rows);
        let outcomes = Outcomes::start(policies.slots().clone(), clock.clone()).map_err(StartError::Thread)?;
        tracing::info!(model = model.name, context_tokens, lanes = lanes.rows.len(), "the node is ready");
        let bounds: Vec<TenantBounds> =
            config.tenants.iter().map(|t| TenantBounds { max_waiting: t.max_waiting, max_running: t.max_running }).collect();
        let inner = Inner {
            model: ServedModel {
                name: model.name.clone(),
                context_tokens,
                created_unix_s: unix_now_s(),
                digest: checkpoints.digest(),
            },
            longest_token_bytes: text.tokenizer.max_token_bytes(),
            tokenizer: text.tokenizer,
            template: text.template,
            eos: text.eos,
            lanes,
            scopes,
            sessions,
            page_tokens,
            keys: KeyRing::new(&config.tenants),
            output_limits: config
                .tenants
                .iter()
                .map(|t| t.max_output_tokens.unwrap_or(config.limits.max_output_tokens))
                .collect(),
            tenant_names: config.tenants.iter().map(|t| t.name.clone()).collect(),
            limits: config.limits.clone(),
            request_timeout: Duration::from_millis(config.server.request_timeout_ms),
            admission: Admission::new(config.limits.max_waiting, &bounds),
            engine,
            policies,
            metrics: Arc::new(Metrics::default()),
            outcomes,
            clock,
            ids: Ids::default(),
            draining: AtomicBool::new(false),
            max_held: Duration::from_millis(config.policies.max_held_ms),
            stop: tokio::sync::watch::Sender::new(false),
        };
        let inner = Arc::new(inner);
        watch::start(watched, Arc::downgrade(&inner), |inner| &inner.policies);
        Ok(Self { inner })
    }
}

/// What turns text into tokens and back.
struct Text {
    tokenizer: Arc<Tokenizer>,
    template: Option<Arc<ChatTemplate>>,
    eos: Vec<u32>,
}

impl Text {
    fn load(checkpoint: &Checkpoint, model: &Model) -> Result<Self, StartError> {
        let tokenizer = tokenizer_of(checkpoint)?.ok_or_else(|| StartError::NoTokenizer(model.path.clone()))?;
        let spelled = |id: Option<u32>| {
            let bytes = id.and_then(|id| tokenizer.token_bytes(id)).unwrap_or_default();
            String::from_utf8_lossy(bytes).into_owned()
        };
        let source = match &model.chat_template {
            Some(path) => Some(read_template(&expand_home(path)?)?),
            None => checkpoint.chat_template().map(ToOwned::to_owned),
        };
        let (bos, eos) = (spelled(tokenizer.bos()), spelled(tokenizer.eos()));
        let template = source.map(|source| ChatTemplate::new(&source, &bos, &eos)).transpose()?.map(Arc::new);
        if template.is_none() {
            tracing::warn!(
                "the checkpoint has no chat template: chat requests are refused; set `chat_template` in the model's table"
            );
        }
        let mut eos = checkpoint.eos_tokens().to_vec();
        eos.extend(tokenizer.eos().filter(|id| !eos.contains(id)));
        Ok(Self { tokenizer: Arc::new(tokenizer), template, eos })
    }
}

fn read_template(path: &Path) -> Result<String, StartError> {
    let failed = |why: String| StartError::Template { path: path.to_owned(), why };
    let bytes = std::fs::metadata(path).map_err(|e| failed(e.to_string()))?.len();
    if bytes > MAX_TEMPLATE_BYTES {
        return Err(failed(format!("has {bytes} bytes; a chat template has at most {MAX_TEMPLATE_BYTES}")));
    }
    std::fs::read_to_string(path).map_err(|e| failed(e.to_string()))
}

/// A device with the weights that its pools share: those of one checkpoint only, which is told by its place. A digest looks at a part
/// of the bytes, and two checkpoints that differ elsewhere are not to serve for each other.
struct LoadedDevice {
    backend: Arc<dyn Backend>,
    weights: BTreeMap<PathBuf, WeightCache>,
    /// By checkpoint and recipe.
    models: BTreeMap<(PathBuf, String), Arc<dyn Architecture>>,
}

impl LoadedDevice {
    fn new(device: &Device) -> Result<Self, StartError> {
        let DeviceKind::Cpu = device.kind;
        let threads = device.threads.map_or_else(millrace_cpu::available_threads, |n| n as usize);
        let compute = match device.compute {
            Compute::Reference => CpuCompute::Reference,
            Compute::Fast => CpuCompute::Fast,
            Compute::Precise => CpuCompute::Precise,
        };
        let backend = CpuBackend::new(CpuOptions { threads, compute, isa: None })?;
        tracing::info!(device = device.name, architecture = backend.describe().architecture, threads, "device ready");
        Ok(Self { backend: Arc::new(backend), weights: BTreeMap::new(), models: BTreeMap::new() })
    }

    /// Pools of one recipe and checkpoint share a model.
    fn model(&mut self, checkpoint: &Checkpoint, recipe: StageRecipe) -> Result<Arc<dyn Architecture>, StartError> {
        let place = checkpoint.path().canonicalize().unwrap_or_else(|_| checkpoint.path().to_owned());
        let key = (place.clone(), recipe.to_string());
        if let Some(model) = self.models.get(&key) {
            return Ok(model.clone());
        }
        let weights = self.weights.entry(place).or_default();
        let model: Arc<dyn Architecture> = millrace_model::load(checkpoint, self.backend.as_ref(), recipe, weights)?.into();
        tracing::info!(%recipe, weight_bytes = model.weight_bytes(), "weights loaded");
        self.models.insert(key, model.clone());
        Ok(model)
    }
}

/// Those of the given rows, in this order, on the devices that they need.
pub(crate) fn load_pools(config: &Config, checkpoints: &Checkpoints, rows: &[usize]) -> Result<Vec<PoolSpec>, StartError> {
    let mut devices: BTreeMap<usize, LoadedDevice> = BTreeMap::new();
    let mut pools = Vec::with_capacity(rows.len());
    for &row in rows {
        let Some(pool) = config.pools.get(row) else { continue };
        let id = PoolId(u32::try_from(row).unwrap_or(u32::MAX));
        let described = config.devices.get(pool.device).ok_or_else(|| StartError::NoDevice(pool.name.clone()))?;
        let device = match devices.entry(pool.device) {
            Entry::Occupied(loaded) => loaded.into_mut(),
            Entry::Vacant(place) => place.insert(LoadedDevice::new(described)?),
        };
        let model = device.model(checkpoints.of(pool), pool.recipe)?;
        let layout = model.kv_layout(pool.kv, pool.page_tokens as usize);
        warn_of_scales(pool, &layout);
        let pages = pages(pool, layout.page_bytes())?;
        tracing::info!(pool = pool.name, pages, tokens = pages.saturating_mul(pool.page_tokens), "pool sized");
        pools.push(PoolSpec {
            name: pool.name.clone(),
            stage: pool.stage,
            precision: millrace_core::StagePrecision { recipe: pool.recipe, kv: pool.kv },
            model,
            backend: device.backend.clone(),
            kv: pool.kv,
            pages,
            page_tokens: pool.page_tokens,
            limits: stage_limits(config, pool, id, pages),
            zero_freed: if config.zeroes_freed(pool) { ZeroFreed::Zero } else { ZeroFreed::Keep },
            tag_checks: if pool.tags { TagChecks::On } else { TagChecks::Off },
            prefixes: prefixes(config, pool, pages),
            weights_digest: checkpoints.digest(),
        });
    }
    Ok(pools)
}

/// What the pool may keep of prompts, if anything.
fn prefixes(config: &Config, pool: &Pool, pages: u32) -> Option<PrefixOptions> {
    let owner_pages = config.prefix_pages(pool, pages)?;
    if owner_pages == 0 {
        tracing::warn!(
            pool = pool.name,
            pages,
            "prefix_cache keeps nothing: each tenant's share is no page; raise memory_mib or prefix_tenant_percent"
        );
    }
    Some(PrefixOptions { owner_pages })
}

/// Latents have one scale per layer in FP8; without calibration it is 1, which may be wrong for a model.
fn warn_of_scales(pool: &Pool, layout: &KvLayout) {
    let latents = layout.planes.iter().any(|plane| plane.kind == PlaneKind::Latent);
    if latents && pool.kv == KvFormat::Fp8 && !layout.latent_scales.calibrated() {
        tracing::warn!(
            pool = pool.name,
            "the checkpoint has no scales for latents in FP8; every layer uses 1.0. Measure with `millrace eval compare`"
        );
    }
}

fn pages(pool: &Pool, page_bytes: usize) -> Result<u32, StartError> {
    let pages = match pool.size {
        PoolSize::Pages(pages) => pages,
        PoolSize::MemoryMib(mib) => {
            let bytes = u64::from(mib) << 20;
            bytes.checked_div(page_bytes as u64).map_or(0, |n| u32::try_from(n).unwrap_or(u32::MAX))
        }
    };
    if pages == 0 {
        return Err(StartError::NoPages { pool: pool.name.clone(), page_bytes });
    }
    Ok(pages)
}

fn stage_limits(config: &Config, pool: &Pool, id: PoolId, pages: u32) -> StageLimits {
    let waiting = config.lanes.iter().filter(|lane| lane.prefill == id).map(|lane| lane.max_waiting);
    StageLimits {
        max_step_tokens: pool.max_step_tokens,
        max_step_us: pool.max_step_us,
        max_sequences: pool.max_sequences,
        max_resident: pool.max_sequences,
        max_waiting: waiting.fold(0, u32::saturating_add),
        max_context: u32::MAX,
        // One in a hundred, for the growth of what already runs.
        watermark_pages: (pages / 100).max(1),
        max_preemptions: MAX_PREEMPTIONS,
        max_view_rows: MAX_VIEW_ROWS,
        step_us_hint: STEP_HINT_US,
    }
}

fn bounded(limits: StageLimits, context_tokens: u32) -> StageLimits {
    StageLimits { max_context: context_tokens, ..limits }
}

pub(crate) fn shares(config: &Config) -> Vec<TenantShare> {
    config.tenants.iter().map(|t| TenantShare { weight: t.weight, tier: tier(t.tier) }).collect()
}

/// By pool of the configuration: its number among those of this process.
fn pool_homes(config: &Config) -> Vec<Option<PoolId>> {
    let mut next = (0..).map(PoolId);
    config.pools.iter().map(|pool| if pool.process { None } else { next.next() }).collect()
}

/// By lane of the configuration: its number among those of this process.
fn lane_homes(config: &Config) -> Vec<Option<LaneId>> {
    let apart = |pool: PoolId| config.pools.get(pool.0 as usize).is_some_and(|pool| pool.process);
    let mut next = (0..).map(LaneId);
    config.lanes.iter().map(|lane| if apart(lane.prefill) { None } else { next.next() }).collect()
}

/// What is known of every pool of the configuration, wherever it runs.
fn known_pools(config: &Config, within: &[PoolSpec], fleet: Option<&Fleet>) -> Vec<KnownPool> {
    let mut within = within.iter();
    let known = |(row, pool): (u32, &Pool)| {
        if !pool.process {
            return within.next().map(KnownPool::of).unwrap_or_default();
        }
        fleet.and_then(|fleet| fleet.ready(PoolId(row))).map(|ready| KnownPool::told(&ready, pool)).unwrap_or_default()
    };
    (0..).zip(&config.pools).map(known).collect()
}

/// A pool, once its model is loaded somewhere.
#[derive(Debug, Clone, Default)]
pub(crate) struct KnownPool {
    pub(crate) figures: PoolFigures,
    /// Context of its model.
    max_tokens: u32,
    pub(crate) weights: String,
    pub(crate) recipe: String,
    pub(crate) layout: String,
    pub(crate) keeps_prompts: bool,
}

impl KnownPool {
    fn of(pool: &PoolSpec) -> Self {
        Self {
            figures: PoolFigures {
                capacity_tokens: pool.pages.saturating_mul(pool.page_tokens),
                weight_bytes: pool.model.weight_bytes() as u64,
            },
            max_tokens: u32::try_from(pool.model.max_tokens()).unwrap_or(u32::MAX),
            weights: pool.weights_digest.clone(),
            recipe: pool.precision.recipe.to_string(),
            layout: pool.model.kv_layout(pool.kv, pool.page_tokens as usize).id(),
            keeps_prompts: pool.prefixes.is_some(),
        }
    }

    fn told(ready: &Ready, pool: &Pool) -> Self {
        let capacity_tokens = ready.pages.saturating_mul(ready.page_tokens);
        Self {
            figures: PoolFigures { capacity_tokens, weight_bytes: ready.weight_bytes },
            max_tokens: ready.max_tokens,
            weights: ready.weights_digest.clone(),
            recipe: pool.recipe.to_string(),
            layout: ready.layout.0.clone(),
            keeps_prompts: pool.prefix_cache,
        }
    }
}

/// Lanes of this process.
fn lane_specs(config: &Config, pools: &[Option<PoolId>]) -> Vec<LaneSpec> {
    let home = |pool: PoolId| pools.get(pool.0 as usize).copied().flatten();
    let spec = |lane: &millrace_config::Lane| {
        Some(LaneSpec {
            name: lane.name.clone(),
            prefill: home(lane.prefill)?,
            decode: home(lane.decode)?,
            precision: config.precision(lane)?,
            max_waiting: lane.max_waiting as usize,
        })
    };
    config.lanes.iter().filter_map(spec).collect()
}

/// Tokens of one sequence: the model's, the configuration's, and what the largest lane can hold.
fn context(model: &Model, pools: &[KnownPool], lanes: &Lanes) -> u32 {
    let own = pools.iter().map(|pool| pool.max_tokens).min().unwrap_or(0);
    let configured = model.max_model_tokens.unwrap_or(u32::MAX);
    let held = lanes.rows.iter().map(|lane| lane.capacity_tokens).max().unwrap_or(0);
    let context = own.min(configured).min(held);
    if context < own.min(configured) {
        tracing::warn!(
            context,
            model = own.min(configured),
            "the pools hold less than the model's context; longer requests are refused"
        );
    }
    context
}

/// Never 0, which is the tag of a page that was never handed out.
pub(crate) fn boot_nonce() -> Result<u16, StartError> {
    let random = random_u64().map_err(StartError::Random)?;
    Ok(u16::try_from(random & 0xffff).unwrap_or(1).max(1))
}

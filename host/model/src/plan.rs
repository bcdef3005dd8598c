//! What a deployment needs before a GPU is bought: weights by recipe, KV by plane, pages and tokens by format, and whether both
//! stages fit one host. Arithmetic over a [`ModelSpec`]; knows no file, no device and no checkpoint.
//!
//! ```text
//! weights   sum over tensors of codes + scales, by what the recipe covers            / GPUs = weights per GPU
//! KV        sum over planes of layers x (elements + scales)                          latents whole, KV heads divided
//! pool      memory - weights per GPU - reserve, or as asked                          / page = pages, x tokens of a page
//! ```
//! Every figure comes with its formula. What a plan cannot know is listed beside them ([`Plan::unknowns`]).

mod capacity;
mod format;
mod kv;
mod recipe;
mod tensors;
mod text;
mod together;
mod unknowns;
mod weights;

use millrace_core::Stage;

use crate::spec::ModelSpec;

pub use capacity::{Capacity, HostGpus, Room};
pub use format::HeldFormat;
pub use kv::{KvBytes, KvShare, PlanKv, PlaneBytes};
pub use recipe::{Coverage, WeightRecipe};
pub use tensors::{TensorClass, TensorGroup, tensors};
pub use text::{gib, thousands};
pub use together::Together;
pub use unknowns::usual_reserve;
pub use weights::{Counted, FormatSum, WeightBytes};

/// Tokens of a page: a multiple of 16 (the layout's), and no more than any kernel takes.
const PAGE_STEP: usize = 16;
const MAX_PAGE_TOKENS: usize = 4096;

/// A plan that cannot be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// Sizes that no model has.
    #[error(
        "the configuration asks for {} `{tensor}` of [{rows}, {cols}], and with that for a model of more than 2^50 parameters; \
         correct its sizes",
        text::counted(*count, "tensor")
    )]
    TooLarge { tensor: &'static str, count: u64, rows: u64, cols: u64 },
    /// A KV format that the model's attention does not have.
    #[error("KV format {format} is the layout of latents of 512 + 64 elements; this model has {has}; use bf16 or fp8")]
    KvFormat { format: PlanKv, has: String },
    /// A recipe that would touch nothing.
    #[error("recipe {recipe} covers routed experts alone, and this model has none; use {}:generic", recipe.format)]
    NoExperts { recipe: WeightRecipe },
    #[error("{what} is {value}; give {allowed}")]
    OutOfRange { what: &'static str, value: String, allowed: String },
    #[error(
        "a page of {} is no multiple of {PAGE_STEP} from {PAGE_STEP} to {MAX_PAGE_TOKENS}; 64 is usual on GPUs",
        text::counted(*tokens as u64, "token")
    )]
    PageTokens { tokens: usize },
}

/// What is planned for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlanRequest {
    pub host: HostGpus,
    /// Tokens of a page, a multiple of 16 up to 4096.
    pub page_tokens: usize,
    /// Layers whose weights take memory.
    pub counted: Counted,
    pub prefill: StageChoice,
    pub decode: StageChoice,
}

/// Precision of one stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StageChoice {
    /// `None`: [`usual_recipe`].
    pub recipe: Option<WeightRecipe>,
    pub kv: PlanKv,
}

/// One recipe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecipePlan {
    pub recipe: WeightRecipe,
    /// Without MTP layers.
    pub model: WeightBytes,
    /// MTP layers.
    pub prediction: WeightBytes,
    /// Of the layers that the request counts.
    pub room: Room,
    /// Alone on the host, for each KV format of [`Plan::kv`] in turn.
    pub capacities: Vec<Capacity>,
}

/// One stage, alone on the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StagePlan {
    pub stage: Stage,
    pub recipe: WeightRecipe,
    pub weights: WeightBytes,
    pub kv: KvBytes,
    pub room: Room,
    pub capacity: Capacity,
}

/// All figures.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    pub tensors: Vec<TensorGroup>,
    pub recipes: Vec<RecipePlan>,
    pub kv: Vec<KvBytes>,
    pub prefill: StagePlan,
    pub decode: StagePlan,
    pub together: Together,
    /// What would change the figures and is not known here, a sentence each.
    pub unknowns: Vec<String>,
}

impl Plan {
    /// # Errors
    /// [`PlanError`], naming what cannot be and what to give instead.
    pub fn new(spec: &ModelSpec, request: &PlanRequest) -> Result<Self, PlanError> {
        request.host.check()?;
        if request.page_tokens == 0 || request.page_tokens > MAX_PAGE_TOKENS || !request.page_tokens.is_multiple_of(PAGE_STEP) {
            return Err(PlanError::PageTokens { tokens: request.page_tokens });
        }
        let tensors = tensors(spec)?;
        let usable = PlanKv::ALL.into_iter().filter(|format| format.check(spec).is_ok());
        let kv: Vec<KvBytes> =
            usable.map(|format| KvBytes::of(spec, format, request.host.gpus, request.page_tokens)).collect::<Result<_, _>>()?;
        let recipes = WeightRecipe::usual(&tensors).into_iter().map(|recipe| recipe_plan(&tensors, recipe, request, &kv));
        let recipes = recipes.collect();
        let prefill = stage_plan(spec, &tensors, request, Stage::Prefill)?;
        let decode = stage_plan(spec, &tensors, request, Stage::Decode)?;
        let shared = WeightBytes::shared(&tensors, [prefill.recipe, decode.recipe], request.counted);
        let together = Together::of(&request.host, [&prefill, &decode], shared);
        let unknowns = unknowns::unknowns(spec, &tensors, request, [&prefill, &decode]);
        Ok(Self { tensors, recipes, kv, prefill, decode, together, unknowns })
    }

    /// Parameters without MTP layers, and those of MTP layers.
    pub fn parameters(&self) -> (u64, u64) {
        let model = self.tensors.iter().map(TensorGroup::parameters).sum();
        (model, self.tensors.iter().map(TensorGroup::prediction_parameters).sum())
    }
}

/// What a stage runs in where nothing is said: on GPUs prefill is bound by arithmetic (FP8), decode by memory (INT4, on the
/// routed experts of a model that has some).
pub fn usual_recipe(stage: Stage, tensors: &[TensorGroup]) -> WeightRecipe {
    let has = |class: TensorClass| tensors.iter().any(|group| group.class == class);
    match stage {
        Stage::Prefill => {
            let coverage = if has(TensorClass::Absorbed) { Coverage::Glm } else { Coverage::Generic };
            WeightRecipe { format: HeldFormat::Fp8Block, coverage }
        }
        Stage::Decode => {
            let coverage = if has(TensorClass::RoutedExperts) { Coverage::Kimi } else { Coverage::Generic };
            WeightRecipe { format: HeldFormat::Int4 { group: 32 }, coverage }
        }
    }
}

fn recipe_plan(tensors: &[TensorGroup], recipe: WeightRecipe, request: &PlanRequest, kv: &[KvBytes]) -> RecipePlan {
    let room = request.host.room(WeightBytes::of(tensors, recipe, request.counted).bytes());
    RecipePlan {
        recipe,
        model: WeightBytes::of(tensors, recipe, Counted::Model),
        prediction: WeightBytes::of(tensors, recipe, Counted::PredictionAlone),
        room,
        capacities: kv.iter().map(|kv| Capacity::of(room.pool_bytes, kv)).collect(),
    }
}

fn stage_plan(spec: &ModelSpec, tensors: &[TensorGroup], request: &PlanRequest, stage: Stage) -> Result<StagePlan, PlanError> {
    let choice = match stage {
        Stage::Prefill => request.prefill,
        Stage::Decode => request.decode,
    };
    let recipe = choice.recipe.unwrap_or_else(|| usual_recipe(stage, tensors));
    let has_experts = tensors.iter().any(|group| group.class == TensorClass::RoutedExperts);
    if recipe.coverage == Coverage::Kimi && !has_experts {
        return Err(PlanError::NoExperts { recipe });
    }
    let weights = WeightBytes::of(tensors, recipe, request.counted);
    let kv = KvBytes::of(spec, choice.kv, request.host.gpus, request.page_tokens)?;
    let room = request.host.room(weights.bytes());
    let capacity = Capacity::of(room.pool_bytes, &kv);
    Ok(StagePlan { stage, recipe, weights, kv, room, capacity })
}

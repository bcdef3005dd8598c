//! What a plan cannot know, said with what it would change. Knows the plan, no device.

use super::recipe::WeightRecipe;
use super::tensors::{TensorClass, TensorGroup};
use super::text::{counted, gib, thousands};
use super::weights::{Counted, WeightBytes};
use super::{PlanRequest, StagePlan};
use crate::spec::{AttentionSpec, ModelSpec};

/// Lines for an operator, most weighty first.
pub(super) fn unknowns(spec: &ModelSpec, groups: &[TensorGroup], request: &PlanRequest, stages: [&StagePlan; 2]) -> Vec<String> {
    let mut lines = vec![format!(
        "reserve: {} GiB per GPU and stage for activations, runtime, graphs and buffers is an assumption; measure it",
        gib(request.host.reserve_bytes)
    )];
    lines.push(whole_tensors(groups, request, stages));
    lines.extend(stages.iter().filter_map(|stage| absorbed(groups, request.counted, stage)));
    if spec.prediction_layers > 0 {
        lines.extend(prediction(spec, groups, request));
    }
    lines.extend(spec.skipped.iter().map(|line| format!("loading: Millrace says of this model that {line}")));
    lines.push("text model alone: vision towers, draft models and tokenizers are in no figure".to_owned());
    lines.push(
        "pool: pages in quarantine and the prefix cache come out of the same pages, so running requests get fewer tokens"
            .to_owned(),
    );
    lines
}

fn whole_tensors(groups: &[TensorGroup], request: &PlanRequest, stages: [&StagePlan; 2]) -> String {
    let more = stages.map(|stage| {
        let whole = WeightBytes::whole_per_gpu(groups, stage.recipe, request.counted).bytes();
        gib(whole - request.host.part(whole).min(whole))
    });
    let [prefill, decode] = more;
    format!(
        "split: weights are divided evenly over the GPUs; engines leave compressing projections, indexers, routers and norms \
         whole on each, up to {prefill} GiB per GPU more for prefill and {decode} for decode"
    )
}

/// Attention over latents applies `kv_b_proj` per head and transposed, where stored codes fit no more.
fn absorbed(groups: &[TensorGroup], counted: Counted, stage: &StagePlan) -> Option<String> {
    let absorbed: Vec<TensorGroup> = groups.iter().filter(|group| group.class == TensorClass::Absorbed).cloned().collect();
    let counted_bytes = WeightBytes::of(&absorbed, stage.recipe, counted).bytes();
    let held = WeightBytes::of(&absorbed, WeightRecipe::BF16, counted).bytes();
    let more = held.checked_sub(counted_bytes).filter(|more| *more > 0)?;
    Some(format!(
        "kv_b_proj: counted as {} in {}; Millrace holds it in bf16 once it is loaded (in f32 from a stored FP8 one under the \
         recipe `stored`), at least {} GiB more in all",
        stage.recipe,
        stage.stage,
        gib(more)
    ))
}

fn prediction(spec: &ModelSpec, groups: &[TensorGroup], request: &PlanRequest) -> [String; 2] {
    let are = if spec.prediction_layers == 1 { "is" } else { "are" };
    let done = match request.counted {
        Counted::Model => "left out",
        Counted::ModelAndPrediction | Counted::PredictionAlone => "counted with the weights",
    };
    let per_layer = match spec.attention {
        AttentionSpec::Latent(latent) => latent.width() + latent.indexer.map_or(0, |indexer| indexer.width),
        AttentionSpec::GroupedQuery(attention) => 2 * attention.key_width(),
    };
    let table = groups.iter().find(|group| group.class == TensorClass::Embedding).map_or(0, TensorGroup::parameters);
    [
        format!(
            "MTP: {} {are} {done}, the KV is not: an engine that speculates so holds up to {} elements per token more, and \
             Millrace does not",
            counted(spec.prediction_layers as u64, "layer"),
            thousands((spec.prediction_layers * per_layer) as u64)
        ),
        format!(
            "MTP: embedding and head are taken as the model's own; a checkpoint that keeps copies of both is {} GiB larger on disk",
            gib(2 * 2 * table)
        ),
    ]
}

/// Reserve where nothing is said: a tenth of a GPU's memory, which is what vLLM leaves (`gpu_memory_utilization` 0.9).
pub fn usual_reserve(bytes_per_gpu: u64) -> u64 {
    bytes_per_gpu / 10
}

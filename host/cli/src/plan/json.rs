//! A plan for programs: one JSON object, sizes in bytes. `examples/configs/README.md` describes it.

use millrace_model::plan::{Capacity, Counted, KvBytes, KvShare, Room, StagePlan, WeightBytes};
use serde_json::{Value, json};

use super::Planned;

pub(super) fn of(planned: &Planned) -> Value {
    let (spec, request, plan) = (&planned.spec, &planned.request, &planned.plan);
    let (parameters, mtp_parameters) = plan.parameters();
    json!({
        "model": {
            "config": planned.path.display().to_string(), "architecture": planned.architecture, "layers": spec.layers.len(),
            "mtp_layers": spec.prediction_layers, "hidden": spec.hidden, "vocab": spec.vocab, "max_tokens": spec.max_tokens,
            "parameters": parameters, "mtp_parameters": mtp_parameters,
        },
        "host": {
            "gpus": request.host.gpus, "bytes_per_gpu": request.host.bytes_per_gpu, "bytes": request.host.bytes(),
            "reserve_bytes_per_gpu_and_stage": request.host.reserve_bytes, "pool_bytes_per_gpu": request.host.pool_bytes,
            "page_tokens": request.page_tokens, "mtp_counted": request.counted != Counted::Model,
        },
        "tensors": tensors(planned),
        "recipes": recipes(planned),
        "kv": plan.kv.iter().map(kv).collect::<Vec<_>>(),
        "prefill": stage(&plan.prefill),
        "decode": stage(&plan.decode),
        "together": together(planned),
        "unknowns": plan.unknowns,
    })
}

fn tensors(planned: &Planned) -> Value {
    let group = |group: &millrace_model::plan::TensorGroup| {
        json!({
            "name": group.name, "class": group.class.name(), "rows": group.rows, "cols": group.cols, "count": group.count,
            "mtp_count": group.prediction_count, "parameters": group.parameters(),
            "mtp_parameters": group.prediction_parameters(),
        })
    };
    planned.plan.tensors.iter().map(group).collect()
}

fn recipes(planned: &Planned) -> Value {
    let recipe = |row: &millrace_model::plan::RecipePlan| {
        let kv = planned.plan.kv.iter().zip(&row.capacities);
        let capacities: Vec<Value> = kv.map(|(kv, capacity)| capacity_of(capacity, row.room.pool_bytes, kv)).collect();
        json!({
            "recipe": row.recipe.to_string(), "weights": weights(&row.model), "mtp_weights": weights(&row.prediction),
            "bytes_with_mtp": row.model.bytes() + row.prediction.bytes(), "room": room(&row.room), "capacities": capacities,
        })
    };
    planned.plan.recipes.iter().map(recipe).collect()
}

fn weights(weights: &WeightBytes) -> Value {
    json!({"bytes": weights.bytes(), "formula": weights.formula()})
}

fn room(room: &Room) -> Value {
    json!({
        "weights_bytes_per_gpu": room.weights_per_gpu, "pool_bytes_per_gpu": room.pool_bytes, "missing_bytes_per_gpu": room.missing(),
        "spare_bytes_per_gpu": room.spare(), "formula": room.formula(),
    })
}

fn kv(kv: &KvBytes) -> Value {
    let plane = |plane: &millrace_model::plan::PlaneBytes| json!({"plane": plane.plane, "bytes_per_token": plane.bytes_per_token, "formula": plane.formula});
    let heads = match kv.share {
        KvShare::Replicated => Value::Null,
        KvShare::Heads { per_gpu, .. } => json!(per_gpu),
    };
    json!({
        "format": kv.format.to_string(), "planes": kv.planes.iter().map(plane).collect::<Vec<_>>(),
        "bytes_per_token": kv.bytes_per_token(), "bytes_per_token_and_gpu": kv.bytes_per_token_and_gpu,
        "kv_heads_per_gpu": heads, "share_formula": kv.share_formula(),
        "page_bytes_per_gpu": kv.page_bytes_per_gpu, "page_formula": kv.page_formula(),
    })
}

fn capacity_of(capacity: &Capacity, pool_bytes: u64, kv: &KvBytes) -> Value {
    json!({
        "kv": kv.format.to_string(), "pages": capacity.pages, "tokens": capacity.tokens,
        "formula": capacity.formula(pool_bytes, kv),
    })
}

fn stage(stage: &StagePlan) -> Value {
    json!({
        "recipe": stage.recipe.to_string(), "weights": weights(&stage.weights), "room": room(&stage.room),
        "capacity": capacity_of(&stage.capacity, stage.room.pool_bytes, &stage.kv),
        "fits": stage.room.missing() == 0 && stage.capacity.pages > 0,
    })
}

fn together(planned: &Planned) -> Value {
    let (both, plan) = (&planned.plan.together, &planned.plan);
    let [prefill, decode] = both.capacities;
    json!({
        "weights_bytes_two_processes": both.weights_apart(), "shared": weights(&both.shared),
        "weights_bytes_one_process": both.weights_in_one_process(), "reserve_bytes": both.reserve, "pool_bytes": both.pools,
        "pool_bytes_per_gpu_and_stage": both.pool_per_gpu, "needed_bytes": both.needed(), "usable_bytes": both.usable,
        "prefill": capacity_of(&prefill, both.pool_per_gpu, &plan.prefill.kv),
        "decode": capacity_of(&decode, both.pool_per_gpu, &plan.decode.kv),
        "fits": both.fits(), "verdict": both.verdict(),
    })
}

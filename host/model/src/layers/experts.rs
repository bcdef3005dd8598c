//! A mixture of experts: a router chooses a few experts per row; their weighted results, and those of the shared expert that
//! every row passes, are added. Knows no attention.

use std::sync::Arc;

use millrace_ops::{
    Activations, Buffer, CombineRows, DispatchRows, ExpertBuffers, LinearExperts, LinearMode, Op, Queue, RouteRows, SiluMul,
    Weight,
};

use super::gated_mlp::{GatedMlp, GatedMlpWork};
use super::projection::{Bias, Projection};
use crate::ModelError;
use crate::spec::ExpertsSpec;
use crate::weights::{Stack, WeightLoader};

pub(super) struct Experts {
    spec: ExpertsSpec,
    hidden: usize,
    router: Projection,
    /// f32 `[experts]`.
    correction_bias: Option<Buffer>,
    /// Per expert `[2 * intermediate, hidden]`.
    gate_up: Arc<[Weight]>,
    /// Per expert `[hidden, intermediate]`.
    down: Arc<[Weight]>,
    shared: Option<GatedMlp>,
}

/// Working memory; slots = max_rows * top_k.
#[derive(Debug, Clone)]
pub(crate) struct ExpertsWork {
    /// `[max_rows, experts]`.
    pub(super) scores: Buffer,
    pub(super) routing: ExpertBuffers,
    /// `[slots, hidden]`.
    pub(super) dispatched: Buffer,
    /// `[slots, 2 * intermediate]`.
    pub(super) gate_up: Buffer,
    /// `[slots, intermediate]`.
    pub(super) gated: Buffer,
    /// `[slots, hidden]`.
    pub(super) results: Buffer,
}

impl Experts {
    pub(super) fn load(
        loader: &mut WeightLoader<'_>,
        module: &str,
        hidden: usize,
        spec: ExpertsSpec,
    ) -> Result<Self, ModelError> {
        let router = Projection::table(loader, &format!("{module}.gate.weight"), spec.experts, hidden)?;
        let correction_bias = match spec.correction_bias {
            true => Some(loader.vectors(&[(format!("{module}.gate.e_score_correction_bias"), spec.experts)])?),
            false => None,
        };
        // Grow with the experts that the checkpoint really holds: a missing tensor ends them.
        let (mut gate_up, mut down) = (Vec::new(), Vec::new());
        for expert in 0..spec.experts {
            let name = |part: &str| format!("{module}.experts.{expert}.{part}.weight");
            let gate_and_up = vec![(name("gate_proj"), spec.intermediate), (name("up_proj"), spec.intermediate)];
            gate_up.push(loader.linear(&Stack { parts: gate_and_up, cols: hidden, activations: Activations::Coarse })?);
            down.push(loader.linear(&Stack {
                parts: vec![(name("down_proj"), hidden)],
                cols: spec.intermediate,
                activations: Activations::Coarse,
            })?);
        }
        let shared = match spec.shared_intermediate {
            0 => None,
            width => Some(GatedMlp::load(loader, &format!("{module}.shared_experts"), (hidden, width), Bias::None)?),
        };
        Ok(Self { spec, hidden, router, correction_bias, gate_up: gate_up.into(), down: down.into(), shared })
    }

    /// Adds to `out`.
    pub(super) fn enqueue(
        &self,
        queue: &mut dyn Queue,
        (work, shared_work): (&ExpertsWork, Option<&GatedMlpWork>),
        (normed, out): (&Buffer, &Buffer),
        rows: usize,
    ) {
        let (hidden, by) = (self.hidden, || work.routing.clone());
        self.router.enqueue(queue, normed, &work.scores, rows, LinearMode::Store);
        queue.enqueue(Op::RouteRows(RouteRows {
            logits: work.scores.clone(),
            bias: self.correction_bias.clone(),
            rule: self.spec.rule,
            to: by(),
            rows,
        }));
        let dispatched = work.dispatched.clone();
        queue.enqueue(Op::DispatchRows(DispatchRows { x: normed.clone(), by: by(), out: dispatched, rows, width: hidden }));
        let product = |x: &Buffer, weights: &Arc<[Weight]>, out: &Buffer| {
            let (x, weights, out) = (x.clone(), Arc::clone(weights), out.clone());
            Op::LinearExperts(LinearExperts { x, weights, by: by(), out, rows })
        };
        queue.enqueue(product(&work.dispatched, &self.gate_up, &work.gate_up));
        let (x, gated) = (work.gate_up.clone(), work.gated.clone());
        let (slots, width) = (rows * self.spec.top_k, self.spec.intermediate);
        queue.enqueue(Op::SiluMul(SiluMul { x, out: gated, rows: slots, width }));
        queue.enqueue(product(&work.gated, &self.down, &work.results));
        let results = work.results.clone();
        queue.enqueue(Op::CombineRows(CombineRows { x: results, by: by(), out: out.clone(), rows, width: hidden }));
        if let (Some(shared), Some(work)) = (&self.shared, shared_work) {
            shared.enqueue(queue, work, (normed, out), rows);
        }
    }
}

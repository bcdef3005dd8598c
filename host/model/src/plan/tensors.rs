//! The tensors that a model is made of, by name and shape, and how often each is there. Knows no format.
//!
//! Names and shapes are those of hub checkpoints. A layer for multi-token prediction (MTP) is one more layer like the last, with
//! an indexer of its own where the model has any, and `eh_proj`, `enorm`, `hnorm` and `shared_head.norm` beside it; its embedding
//! and head are the model's own. Source: the published index and configuration of GLM-5.2-FP8, whose bytes this inventory meets
//! exactly (see the tests); DeepSeek-V3 (2024), section 2.2.

use super::PlanError;
use crate::spec::{
    AttentionSpec, ExpertsSpec, FeedForwardSpec, GroupedQuerySpec, IndexerSpec, Indexing, LatentSpec, LayerSpec, ModelSpec,
};

/// No model has more parameters; sums of bytes stay far from overflow.
const MAX_PARAMETERS: u128 = 1 << 50;

/// What a tensor is to the model, as far as recipes and devices tell tensors apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TensorClass {
    Embedding,
    Head,
    Norm,
    Bias,
    Router,
    /// Chooses experts; f32 in every checkpoint.
    CorrectionBias,
    /// Projections of attention but those named below.
    Attention,
    /// `q_a_proj` and `kv_a_proj_with_mqa`.
    Compression,
    /// `kv_b_proj`, which is taken apart when attention runs over latents.
    Absorbed,
    /// Queries and keys of the indexer.
    Indexer,
    /// `weights_proj` of the indexer.
    IndexerWeights,
    DenseMlp,
    RoutedExperts,
    SharedExperts,
    /// `eh_proj`: joins an embedding and a hidden state in front of an MTP layer.
    PredictionInput,
}

impl TensorClass {
    /// As outputs spell it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Embedding => "embedding",
            Self::Head => "head",
            Self::Norm => "norm",
            Self::Bias => "bias",
            Self::Router => "router",
            Self::CorrectionBias => "correction_bias",
            Self::Attention => "attention",
            Self::Compression => "attention_compression",
            Self::Absorbed => "kv_b",
            Self::Indexer => "indexer",
            Self::IndexerWeights => "indexer_weights",
            Self::DenseMlp => "dense_mlp",
            Self::RoutedExperts => "routed_experts",
            Self::SharedExperts => "shared_experts",
            Self::PredictionInput => "mtp_input",
        }
    }

    /// Whether tensor parallelism, as engines do it today, leaves such a tensor whole on every GPU: it is small, or its output
    /// is needed whole by each. Source: ReplicatedLinear in the DeepSeek models of vLLM and SGLang.
    pub fn is_whole_per_gpu(self) -> bool {
        match self {
            Self::Norm
            | Self::Bias
            | Self::Router
            | Self::CorrectionBias
            | Self::Compression
            | Self::Indexer
            | Self::IndexerWeights
            | Self::PredictionInput => true,
            Self::Embedding
            | Self::Head
            | Self::Attention
            | Self::Absorbed
            | Self::DenseMlp
            | Self::RoutedExperts
            | Self::SharedExperts => false,
        }
    }
}

/// Tensors of one name and shape.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorGroup {
    /// Inside a layer, or of the model: `self_attn.q_a_proj`, `embed_tokens`.
    pub name: &'static str,
    pub class: TensorClass,
    /// 1 for vectors.
    pub rows: u64,
    pub cols: u64,
    /// In the model without MTP layers.
    pub count: u64,
    /// In MTP layers.
    pub prediction_count: u64,
}

impl TensorGroup {
    /// Parameters of all, MTP layers left out.
    pub fn parameters(&self) -> u64 {
        self.rows * self.cols * self.count
    }

    /// Parameters of those in MTP layers.
    pub fn prediction_parameters(&self) -> u64 {
        self.rows * self.cols * self.prediction_count
    }
}

/// Every tensor of a model, MTP layers included, in the order of a checkpoint's layers.
///
/// # Errors
/// [`PlanError::TooLarge`] for a model that nobody has.
pub fn tensors(spec: &ModelSpec) -> Result<Vec<TensorGroup>, PlanError> {
    let (hidden, vocab) = (spec.hidden, spec.vocab);
    let mut inventory = Inventory::default();
    inventory.add(TensorClass::Embedding, "embed_tokens", (vocab, hidden));
    for layer in &spec.layers {
        inventory.add_layer(spec, layer);
    }
    inventory.vector(TensorClass::Norm, "norm", hidden);
    if !spec.tied_head {
        inventory.add(TensorClass::Head, "lm_head", (vocab, hidden));
    }
    inventory.in_prediction_layer = true;
    if let Some(last) = spec.layers.last() {
        let indexing = if last.indexing == Indexing::Dense { Indexing::Dense } else { Indexing::Full };
        for _ in 0..spec.prediction_layers {
            inventory.add_layer(spec, &LayerSpec { indexing, ..*last });
            inventory.add(TensorClass::PredictionInput, "eh_proj", (hidden, 2 * hidden));
            for name in ["enorm", "hnorm", "shared_head.norm"] {
                inventory.vector(TensorClass::Norm, name, hidden);
            }
        }
    }
    inventory.finish()
}

#[derive(Default)]
struct Inventory {
    groups: Vec<TensorGroup>,
    in_prediction_layer: bool,
}

impl Inventory {
    fn add(&mut self, class: TensorClass, name: &'static str, shape: (usize, usize)) {
        self.add_many(class, name, shape, 1);
    }

    fn vector(&mut self, class: TensorClass, name: &'static str, length: usize) {
        self.add(class, name, (1, length));
    }

    fn add_many(&mut self, class: TensorClass, name: &'static str, (rows, cols): (usize, usize), count: usize) {
        let (rows, cols, count) = (rows as u64, cols as u64, count as u64);
        let (count, prediction_count) = if self.in_prediction_layer { (0, count) } else { (count, 0) };
        let same = |group: &&mut TensorGroup| (group.name, group.rows, group.cols) == (name, rows, cols);
        match self.groups.iter_mut().find(same) {
            Some(group) => {
                group.count += count;
                group.prediction_count += prediction_count;
            }
            None => self.groups.push(TensorGroup { name, class, rows, cols, count, prediction_count }),
        }
    }

    fn add_layer(&mut self, spec: &ModelSpec, layer: &LayerSpec) {
        self.vector(TensorClass::Norm, "input_layernorm", spec.hidden);
        match &spec.attention {
            AttentionSpec::GroupedQuery(attention) => self.add_grouped_query(attention, spec.hidden),
            AttentionSpec::Latent(attention) => {
                self.add_latent(attention, spec.hidden);
                if let (Some(indexer), Indexing::Full) = (&attention.indexer, layer.indexing) {
                    self.add_indexer(indexer, attention.query_rank.unwrap_or(spec.hidden), spec.hidden);
                }
            }
        }
        self.vector(TensorClass::Norm, "post_attention_layernorm", spec.hidden);
        match &layer.feed_forward {
            FeedForwardSpec::Dense { intermediate, bias } => self.add_dense(spec.hidden, *intermediate, *bias),
            FeedForwardSpec::Experts(experts) => self.add_experts(experts, spec.hidden),
        }
    }

    fn add_grouped_query(&mut self, attention: &GroupedQuerySpec, hidden: usize) {
        let (queries, keys) = (attention.query_width(), attention.key_width());
        let inputs = [
            ("self_attn.q_proj", "self_attn.q_proj.bias", queries),
            ("self_attn.k_proj", "self_attn.k_proj.bias", keys),
            ("self_attn.v_proj", "self_attn.v_proj.bias", keys),
        ];
        for (name, bias, width) in inputs {
            self.add(TensorClass::Attention, name, (width, hidden));
            if attention.input_bias {
                self.vector(TensorClass::Bias, bias, width);
            }
        }
        self.add(TensorClass::Attention, "self_attn.o_proj", (hidden, queries));
        if attention.output_bias {
            self.vector(TensorClass::Bias, "self_attn.o_proj.bias", hidden);
        }
        if attention.head_norms {
            self.vector(TensorClass::Norm, "self_attn.q_norm", attention.head_dim);
            self.vector(TensorClass::Norm, "self_attn.k_norm", attention.head_dim);
        }
    }

    fn add_latent(&mut self, attention: &LatentSpec, hidden: usize) {
        let query_width = attention.heads * attention.query_dim();
        match attention.query_rank {
            None => self.add(TensorClass::Attention, "self_attn.q_proj", (query_width, hidden)),
            Some(rank) => {
                self.add(TensorClass::Compression, "self_attn.q_a_proj", (rank, hidden));
                self.vector(TensorClass::Norm, "self_attn.q_a_layernorm", rank);
                self.add(TensorClass::Attention, "self_attn.q_b_proj", (query_width, rank));
                if attention.bias {
                    self.vector(TensorClass::Bias, "self_attn.q_a_proj.bias", rank);
                }
            }
        }
        self.add(TensorClass::Compression, "self_attn.kv_a_proj_with_mqa", (attention.width(), hidden));
        self.vector(TensorClass::Norm, "self_attn.kv_a_layernorm", attention.latent);
        let expanded = attention.heads * (attention.plain + attention.value);
        self.add(TensorClass::Absorbed, "self_attn.kv_b_proj", (expanded, attention.latent));
        self.add(TensorClass::Attention, "self_attn.o_proj", (hidden, attention.heads * attention.value));
        if attention.bias {
            self.vector(TensorClass::Bias, "self_attn.kv_a_proj_with_mqa.bias", attention.width());
            self.vector(TensorClass::Bias, "self_attn.o_proj.bias", hidden);
        }
    }

    fn add_indexer(&mut self, indexer: &IndexerSpec, query_rank: usize, hidden: usize) {
        self.add(TensorClass::Indexer, "self_attn.indexer.wq_b", (indexer.heads * indexer.width, query_rank));
        self.add(TensorClass::Indexer, "self_attn.indexer.wk", (indexer.width, hidden));
        self.add(TensorClass::IndexerWeights, "self_attn.indexer.weights_proj", (indexer.heads, hidden));
        self.vector(TensorClass::Norm, "self_attn.indexer.k_norm", indexer.width);
        self.vector(TensorClass::Norm, "self_attn.indexer.k_norm.bias", indexer.width);
    }

    fn add_dense(&mut self, hidden: usize, intermediate: usize, biased: bool) {
        let parts = [
            ("mlp.gate_proj", "mlp.gate_proj.bias", (intermediate, hidden)),
            ("mlp.up_proj", "mlp.up_proj.bias", (intermediate, hidden)),
            ("mlp.down_proj", "mlp.down_proj.bias", (hidden, intermediate)),
        ];
        for (name, bias, shape) in parts {
            self.add(TensorClass::DenseMlp, name, shape);
            if biased {
                self.vector(TensorClass::Bias, bias, shape.0);
            }
        }
    }

    fn add_experts(&mut self, experts: &ExpertsSpec, hidden: usize) {
        self.add(TensorClass::Router, "mlp.gate", (experts.experts, hidden));
        if experts.correction_bias {
            self.vector(TensorClass::CorrectionBias, "mlp.gate.e_score_correction_bias", experts.experts);
        }
        let (up, down) = ((experts.intermediate, hidden), (hidden, experts.intermediate));
        for (name, shape) in [("mlp.experts.*.gate_proj", up), ("mlp.experts.*.up_proj", up), ("mlp.experts.*.down_proj", down)] {
            self.add_many(TensorClass::RoutedExperts, name, shape, experts.experts);
        }
        let shared = experts.shared_intermediate;
        if shared > 0 {
            self.add(TensorClass::SharedExperts, "mlp.shared_experts.gate_proj", (shared, hidden));
            self.add(TensorClass::SharedExperts, "mlp.shared_experts.up_proj", (shared, hidden));
            self.add(TensorClass::SharedExperts, "mlp.shared_experts.down_proj", (hidden, shared));
        }
    }

    fn finish(self) -> Result<Vec<TensorGroup>, PlanError> {
        let mut total = 0u128;
        for group in &self.groups {
            let copies = u128::from(group.count) + u128::from(group.prediction_count);
            total = total.saturating_add((u128::from(group.rows) * u128::from(group.cols)).saturating_mul(copies));
            if total > MAX_PARAMETERS {
                let (tensor, count) = (group.name, group.count.saturating_add(group.prediction_count));
                return Err(PlanError::TooLarge { tensor, count, rows: group.rows, cols: group.cols });
            }
        }
        Ok(self.groups)
    }
}

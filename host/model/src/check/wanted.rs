//! Every tensor that a specification asks for, layer by layer: name, shape, and the configuration's keys that a size comes
//! from. Knows names of hub checkpoints; not what is in a file.

use crate::spec::{
    AttentionSpec, ExpertsSpec, FeedForwardSpec, GroupedQuerySpec, IndexerSpec, Indexing, LatentSpec, LayerSpec, ModelSpec,
};

/// Keys that say how many experts there are; an architecture uses one of them.
pub(super) const EXPERTS: &[&str] = &["n_routed_experts", "num_experts", "num_local_experts"];

/// A size and the keys that it is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Size {
    pub(super) elements: usize,
    pub(super) keys: &'static [&'static str],
}

/// A tensor that the model is computed with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) name: String,
    /// 1 for a vector.
    pub(super) rows: Size,
    pub(super) cols: Size,
}

const ONE: Size = size(1, &[]);

const fn size(elements: usize, keys: &'static [&'static str]) -> Size {
    Size { elements, keys }
}

/// What lies outside of layers. A head that is stored is used, tied or not.
pub(super) fn outside(spec: &ModelSpec, stores_head: impl FnOnce() -> bool) -> Vec<Wanted> {
    let (hidden, vocab) = (size(spec.hidden, &["hidden_size"]), size(spec.vocab, &["vocab_size"]));
    let matrix = |name: &str| Wanted { name: name.to_owned(), rows: vocab, cols: hidden };
    let mut wanted = vec![matrix("model.embed_tokens.weight")];
    wanted.push(Wanted { name: "model.norm.weight".to_owned(), rows: ONE, cols: hidden });
    if !spec.tied_head || stores_head() {
        wanted.push(matrix("lm_head.weight"));
    }
    wanted
}

/// What one layer is made of.
pub(super) fn layer(spec: &ModelSpec, index: usize, layer: &LayerSpec) -> Vec<Wanted> {
    let mut list = List { wanted: Vec::new(), index, hidden: size(spec.hidden, &["hidden_size"]) };
    list.vector("input_layernorm.weight", list.hidden);
    list.vector("post_attention_layernorm.weight", list.hidden);
    match &spec.attention {
        AttentionSpec::GroupedQuery(attention) => list.grouped_query(attention),
        AttentionSpec::Latent(attention) => {
            list.latent(attention);
            if let (Some(indexer), Indexing::Full) = (&attention.indexer, layer.indexing) {
                list.indexer(indexer, attention);
            }
        }
    }
    match &layer.feed_forward {
        FeedForwardSpec::Dense { intermediate, bias } => {
            list.gated("mlp", size(*intermediate, &["intermediate_size"]), *bias);
        }
        FeedForwardSpec::Experts(experts) => list.experts(experts),
    }
    list.wanted
}

struct List {
    wanted: Vec<Wanted>,
    index: usize,
    hidden: Size,
}

impl List {
    fn matrix(&mut self, part: &str, rows: Size, cols: Size) {
        self.wanted.push(Wanted { name: format!("model.layers.{}.{part}", self.index), rows, cols });
    }

    fn vector(&mut self, part: &str, length: Size) {
        self.matrix(part, ONE, length);
    }

    /// `MODULE.weight`, and `MODULE.bias` where it has one.
    fn projection(&mut self, module: &str, rows: Size, cols: Size, biased: bool) {
        self.matrix(&format!("{module}.weight"), rows, cols);
        if biased {
            self.vector(&format!("{module}.bias"), rows);
        }
    }

    fn grouped_query(&mut self, spec: &GroupedQuerySpec) {
        let queries = size(spec.query_width(), &["num_attention_heads", "head_dim"]);
        let keys = size(spec.key_width(), &["num_key_value_heads", "head_dim"]);
        self.projection("self_attn.q_proj", queries, self.hidden, spec.input_bias);
        self.projection("self_attn.k_proj", keys, self.hidden, spec.input_bias);
        self.projection("self_attn.v_proj", keys, self.hidden, spec.input_bias);
        self.projection("self_attn.o_proj", self.hidden, queries, spec.output_bias);
        if spec.head_norms {
            let head = size(spec.head_dim, &["head_dim"]);
            self.vector("self_attn.q_norm.weight", head);
            self.vector("self_attn.k_norm.weight", head);
        }
    }

    fn latent(&mut self, spec: &LatentSpec) {
        let queries = size(spec.heads * spec.query_dim(), &["num_attention_heads", "qk_nope_head_dim", "qk_rope_head_dim"]);
        match spec.query_rank {
            None => self.projection("self_attn.q_proj", queries, self.hidden, false),
            Some(rank) => {
                let rank = size(rank, &["q_lora_rank"]);
                self.projection("self_attn.q_a_proj", rank, self.hidden, spec.bias);
                self.vector("self_attn.q_a_layernorm.weight", rank);
                self.projection("self_attn.q_b_proj", queries, rank, false);
            }
        }
        let latent = size(spec.latent, &["kv_lora_rank"]);
        let compressed = size(spec.width(), &["kv_lora_rank", "qk_rope_head_dim"]);
        self.projection("self_attn.kv_a_proj_with_mqa", compressed, self.hidden, spec.bias);
        self.vector("self_attn.kv_a_layernorm.weight", latent);
        let expanded = size(spec.heads * (spec.plain + spec.value), &["num_attention_heads", "qk_nope_head_dim", "v_head_dim"]);
        self.projection("self_attn.kv_b_proj", expanded, latent, false);
        let values = size(spec.heads * spec.value, &["num_attention_heads", "v_head_dim"]);
        self.projection("self_attn.o_proj", self.hidden, values, spec.bias);
    }

    fn indexer(&mut self, spec: &IndexerSpec, attention: &LatentSpec) {
        let rank = attention.query_rank.map_or(self.hidden, |rank| size(rank, &["q_lora_rank"]));
        let (heads, width) = (size(spec.heads, &["index_n_heads"]), size(spec.width, &["index_head_dim"]));
        let queries = size(spec.heads * spec.width, &["index_n_heads", "index_head_dim"]);
        self.projection("self_attn.indexer.wq_b", queries, rank, false);
        self.projection("self_attn.indexer.wk", width, self.hidden, false);
        self.vector("self_attn.indexer.k_norm.weight", width);
        self.vector("self_attn.indexer.k_norm.bias", width);
        self.projection("self_attn.indexer.weights_proj", heads, self.hidden, false);
    }

    fn gated(&mut self, module: &str, intermediate: Size, biased: bool) {
        self.projection(&format!("{module}.gate_proj"), intermediate, self.hidden, biased);
        self.projection(&format!("{module}.up_proj"), intermediate, self.hidden, biased);
        self.projection(&format!("{module}.down_proj"), self.hidden, intermediate, biased);
    }

    /// The router comes first: where the configuration counts other experts than there are, it is the one to say so.
    fn experts(&mut self, spec: &ExpertsSpec) {
        let experts = size(spec.experts, EXPERTS);
        self.projection("mlp.gate", experts, self.hidden, false);
        if spec.correction_bias {
            self.vector("mlp.gate.e_score_correction_bias", experts);
        }
        let intermediate = size(spec.intermediate, &["moe_intermediate_size"]);
        for expert in 0..spec.experts {
            self.gated(&format!("mlp.experts.{expert}"), intermediate, false);
        }
        if spec.shared_intermediate > 0 {
            let shared = size(spec.shared_intermediate, &["n_shared_experts", "moe_intermediate_size"]);
            self.gated("mlp.shared_experts", shared, false);
        }
    }
}

//! What a model is made of, as plain data: read from a configuration before any weight is. Loading, memory plans and KV layouts
//! all start from it. Knows neither files nor devices, nor which architecture wrote the configuration.

pub(crate) mod read;
pub(crate) mod rope;

use millrace_ops::{KvFormat, KvLayout, PlaneShape, RouteRule};

pub use rope::{RopeScaling, RopeSpec};

/// A decoder-only transformer.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelSpec {
    pub hidden: usize,
    pub vocab: usize,
    /// Longest context in tokens.
    pub max_tokens: usize,
    pub norm_eps: f32,
    /// The head is the embedding table.
    pub tied_head: bool,
    /// The same in every layer, but for who indexes.
    pub attention: AttentionSpec,
    pub layers: Vec<LayerSpec>,
    /// Layers for multi-token prediction behind the others, which the configuration names and nothing here runs.
    pub prediction_layers: usize,
    /// A line for each part that the configuration names and that is skipped.
    pub skipped: Vec<String>,
}

/// One layer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LayerSpec {
    pub indexing: Indexing,
    pub feed_forward: FeedForwardSpec,
}

/// Who chooses the tokens that a layer attends to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Indexing {
    /// Nobody: attention is dense.
    Dense,
    /// The layer's own indexer.
    Full,
    /// The last full layer before it.
    Shared,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum AttentionSpec {
    GroupedQuery(GroupedQuerySpec),
    Latent(LatentSpec),
}

/// Grouped-query attention.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GroupedQuerySpec {
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub rope: RopeSpec,
    /// q, k and v have biases.
    pub input_bias: bool,
    /// o has a bias.
    pub output_bias: bool,
    /// Each head's query and key is normed by itself before it is rotated.
    pub head_norms: bool,
}

/// Attention over one latent per token (MLA).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LatentSpec {
    pub heads: usize,
    /// Width that queries are compressed to; `None`: they are not.
    pub query_rank: Option<usize>,
    /// Width of compressed keys and values.
    pub latent: usize,
    /// Query and key elements per head that carry no position.
    pub plain: usize,
    /// Query elements per head, and key elements per token, that are rotated.
    pub rotary: usize,
    /// Value elements per head.
    pub value: usize,
    pub rope: RopeSpec,
    /// The compressing projections and o have biases.
    pub bias: bool,
    /// Where attention is sparse.
    pub indexer: Option<IndexerSpec>,
}

/// The indexer of sparse attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IndexerSpec {
    pub heads: usize,
    pub width: usize,
    /// Tokens that a row attends to at most.
    pub limit: usize,
    /// Which channels of its queries and keys turn together.
    pub pairs: millrace_ops::RopePairs,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum FeedForwardSpec {
    Dense { intermediate: usize, bias: bool },
    Experts(ExpertsSpec),
}

/// A mixture of experts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ExpertsSpec {
    pub experts: usize,
    pub top_k: usize,
    pub intermediate: usize,
    /// Intermediate width of the expert that every row passes; 0: none.
    pub shared_intermediate: usize,
    pub rule: RouteRule,
    /// The checkpoint holds a bias for choosing experts.
    pub correction_bias: bool,
}

impl ModelSpec {
    /// Layout of a page of `page_tokens` tokens, a multiple of 16.
    pub fn kv_layout(&self, format: KvFormat, page_tokens: usize) -> KvLayout {
        let layers = self.layers.len();
        match self.attention {
            AttentionSpec::GroupedQuery(attention) => {
                KvLayout::grouped_query(layers, attention.kv_heads, attention.head_dim, page_tokens, format)
            }
            AttentionSpec::Latent(attention) => {
                let index_keys = attention.indexer.map(|indexer| PlaneShape { layers: self.full_layers(), width: indexer.width });
                KvLayout::latent(PlaneShape { layers, width: attention.width() }, index_keys, page_tokens, format)
            }
        }
    }

    /// Layers with an indexer of their own.
    pub fn full_layers(&self) -> usize {
        self.layers.iter().filter(|layer| layer.indexing == Indexing::Full).count()
    }
}

impl AttentionSpec {
    /// Width of what a row's heads give.
    pub fn output_width(&self) -> usize {
        match self {
            Self::GroupedQuery(attention) => attention.query_width(),
            Self::Latent(attention) => attention.heads * attention.value,
        }
    }
}

impl GroupedQuerySpec {
    /// Width of all queries of a row.
    pub fn query_width(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Width of all keys (or values) of a row.
    pub fn key_width(&self) -> usize {
        self.kv_heads * self.head_dim
    }
}

impl LatentSpec {
    /// Elements of a token in the cache.
    pub fn width(&self) -> usize {
        self.latent + self.rotary
    }

    /// Elements of a head's query.
    pub fn query_dim(&self) -> usize {
        self.plain + self.rotary
    }

    /// Factor on scores.
    pub fn scale(&self) -> f32 {
        self.rope.score_scale() / (self.query_dim() as f32).sqrt()
    }
}

//! Whether two checkpoints are the same model in two formats, so that one may run prefill and the other decode. Compares what
//! configurations say; that the tensors have the shapes which the configuration asks for is settled when they are loaded.

mod words;

use std::path::PathBuf;

use millrace_ops::KvFormat;

use crate::spec::{AttentionSpec, FeedForwardSpec, Indexing, LayerSpec, ModelSpec};
use crate::{Checkpoint, ModelError, TokenizerSource, spec_of};

/// Two checkpoints of different models.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{} and {} are not the same model: {what} is {first} in the one and {second} in the other; give both stages checkpoints of \
     one model, in whatever formats",
    first_path.display(),
    second_path.display()
)]
pub struct Disagreement {
    pub first_path: PathBuf,
    pub second_path: PathBuf,
    /// What differs: `hidden size`, `layer 3's experts` ..
    pub what: String,
    pub first: String,
    pub second: String,
}

/// What is known of two checkpoints' tokenizers without running them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenizerAgreement {
    /// The same vocabulary and merges, byte for byte, or neither has any.
    Same,
    /// One of the two has none; the other's serves both.
    OneMissing,
    /// One is a GGUF vocabulary and the other a tokenizer.json: encode a text with both to know.
    OtherKind,
    /// They differ: ids of one may mean something else to the other.
    Different,
}

/// Why two checkpoints cannot serve one lane, or could not be looked at.
#[derive(Debug, Clone, thiserror::Error)]
pub enum AgreementError {
    #[error(transparent)]
    Disagreement(#[from] Box<Disagreement>),
    #[error(transparent)]
    Model(#[from] ModelError),
}

/// Checks that two checkpoints are one model: architecture, sizes, vocabulary, KV layout apart from its format. Weight formats,
/// context lengths and parts that nothing here runs may differ; so may tokenizers, which the result says.
///
/// # Errors
/// [`Disagreement`] names the first thing that differs; [`ModelError`] where a configuration or vocabulary cannot be read.
pub fn check_agreement(first: &Checkpoint, second: &Checkpoint) -> Result<TokenizerAgreement, AgreementError> {
    let specs = [spec_of(first.config())?, spec_of(second.config())?];
    let names = [first, second].map(|checkpoint| checkpoint.config().architecture().to_owned());
    if let Some(difference) = difference(&specs, &names) {
        let Difference { what, values: [first_value, second_value] } = difference;
        return Err(Box::new(Disagreement {
            first_path: first.path().to_path_buf(),
            second_path: second.path().to_path_buf(),
            what,
            first: first_value,
            second: second_value,
        })
        .into());
    }
    tokenizers(first, second).map_err(|error| AgreementError::Model(error.into()))
}

struct Difference {
    what: String,
    values: [String; 2],
}

fn differ<T: PartialEq + ToString>(what: &str, values: [T; 2]) -> Option<Difference> {
    let [first, second] = &values;
    (first != second).then(|| Difference { what: what.to_owned(), values: values.map(|value| value.to_string()) })
}

/// Compares part by part, and names those that differ.
fn parts_differ(what: &str, [first, second]: [Vec<String>; 2]) -> Option<Difference> {
    if first == second {
        return None;
    }
    let values = if first.len() == second.len() {
        let differing = first.iter().zip(&second).filter(|(one, other)| one != other);
        let (one, other): (Vec<&str>, Vec<&str>) = differing.map(|(one, other)| (one.as_str(), other.as_str())).unzip();
        [one.join(", "), other.join(", ")]
    } else {
        [first.join(", "), second.join(", ")]
    };
    Some(Difference { what: what.to_owned(), values })
}

/// The first thing that differs. An architecture's name differs only where something else does: one computation may go by
/// several names (a wrapper's, a fork's, a GGUF file's).
fn difference([first, second]: &[ModelSpec; 2], names: &[String; 2]) -> Option<Difference> {
    let sizes = differ("hidden size", [first.hidden, second.hidden])
        .or_else(|| differ("vocabulary size", [first.vocab, second.vocab]))
        .or_else(|| differ("number of layers", [first.layers.len(), second.layers.len()]))
        .or_else(|| attention([first.attention, second.attention]))
        .or_else(|| layers(&first.layers, &second.layers))
        .or_else(|| differ("norm epsilon", [first.norm_eps, second.norm_eps]))
        .or_else(|| {
            differ(
                "sharing of head and embedding",
                [first.tied_head, second.tied_head].map(|tied| if tied { "yes" } else { "no" }),
            )
        })
        .or_else(|| layouts([first, second]))?;
    let [one, other] = names;
    Some(if one == other {
        sizes
    } else {
        let Difference { what, values: [first, second] } = sizes;
        let what = format!("the architecture ({what})");
        Difference { what, values: [format!("{one} ({first})"), format!("{other} ({second})")] }
    })
}

fn attention(specs: [AttentionSpec; 2]) -> Option<Difference> {
    let parts = match specs {
        [AttentionSpec::GroupedQuery(first), AttentionSpec::GroupedQuery(second)] => {
            [words::grouped_query(first), words::grouped_query(second)].map(Vec::from)
        }
        [AttentionSpec::Latent(first), AttentionSpec::Latent(second)] => {
            [words::latent(first), words::latent(second)].map(Vec::from)
        }
        kinds => {
            let kind = |spec| match spec {
                AttentionSpec::GroupedQuery(_) => "grouped-query",
                AttentionSpec::Latent(_) => "over latents",
            };
            return differ("attention", kinds.map(kind));
        }
    };
    let [first, second] = parts;
    first.into_iter().zip(second).find_map(|((what, first), (_, second))| parts_differ(what, [first, second]))
}

fn layers(first: &[LayerSpec], second: &[LayerSpec]) -> Option<Difference> {
    let index = first.iter().zip(second).position(|(first, second)| first != second)?;
    let (first, second) = (first.get(index)?, second.get(index)?);
    let indexing = |layer: &LayerSpec| match layer.indexing {
        Indexing::Dense => "dense",
        Indexing::Full => "by its own indexer",
        Indexing::Shared => "by an earlier layer's indexer",
    };
    differ(&format!("layer {index}'s choice of tokens"), [indexing(first), indexing(second)]).or_else(|| {
        let what = match (first.feed_forward, second.feed_forward) {
            (FeedForwardSpec::Experts(_), FeedForwardSpec::Experts(_)) => format!("layer {index}'s experts"),
            _ => format!("layer {index}'s feed-forward part"),
        };
        parts_differ(&what, [first.feed_forward, second.feed_forward].map(words::feed_forward))
    })
}

/// Follows from the sizes above for every architecture there is; compared all the same, since a hand-off rests on it.
fn layouts(specs: [&ModelSpec; 2]) -> Option<Difference> {
    const ANY_PAGE_TOKENS: usize = 16;
    let layouts = specs.map(|spec| spec.kv_layout(KvFormat::F32, ANY_PAGE_TOKENS));
    let [first, second] = &layouts;
    (!first.agrees_but_for_format(second))
        .then(|| Difference { what: "layout of KV pages".to_owned(), values: layouts.map(|layout| layout.id()) })
}

fn tokenizers(first: &Checkpoint, second: &Checkpoint) -> Result<TokenizerAgreement, crate::CheckpointError> {
    use TokenizerSource as Source;
    Ok(match (first.tokenizer()?, second.tokenizer()?) {
        (Source::Missing, Source::Missing) => TokenizerAgreement::Same,
        (Source::Missing, _) | (_, Source::Missing) => TokenizerAgreement::OneMissing,
        (Source::Gguf(first), Source::Gguf(second)) => same(first == second),
        (Source::Files { tokenizer_json: first, .. }, Source::Files { tokenizer_json: second, .. }) => {
            let read = |path: &PathBuf| std::fs::read(path).map_err(|error| crate::CheckpointError::unreadable(path, &error));
            same(first == second || read(&first)? == read(&second)?)
        }
        (Source::Gguf(_), Source::Files { .. }) | (Source::Files { .. }, Source::Gguf(_)) => TokenizerAgreement::OtherKind,
    })
}

fn same(equal: bool) -> TokenizerAgreement {
    if equal { TokenizerAgreement::Same } else { TokenizerAgreement::Different }
}

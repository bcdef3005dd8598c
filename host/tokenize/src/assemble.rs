//! Puts a tokenizer together from the library's pipeline and what a file says about it. Does not know file formats.

use tokenizers::{NormalizerWrapper, OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer, Tokenizer as Pipeline};

use crate::disguise::Disguise;
use crate::pieces::PROBES;
use crate::token_table::TokenTable;
use crate::tokenizer::DEFAULT_MAX_TEXT_BYTES;
use crate::{TokenizeError, Tokenizer};

/// Ids must be below this: four times the largest vocabulary in use.
pub(crate) const MAX_VOCABULARY: usize = 1 << 20;
/// Merges must be fewer than this.
pub(crate) const MAX_MERGES: usize = 1 << 22;

/// What a file gives besides the pipeline.
pub(crate) struct Facts {
    pub(crate) table: TokenTable,
    pub(crate) prefix: Vec<u32>,
    pub(crate) suffix: Vec<u32>,
    pub(crate) bos: Option<u32>,
    pub(crate) eos: Option<u32>,
}

pub(crate) fn assemble(pipeline: Pipeline, facts: Facts) -> Result<Tokenizer, TokenizeError> {
    let mut plain = pipeline.get_added_vocabulary().clone();
    plain.set_encode_special_tokens(true);
    let specials = plain.get_added_tokens_decoder().values().filter(|token| token.special);
    let mut spellings: Vec<String> = specials.map(|token| token.content.clone()).collect();
    spellings.sort_unstable();
    let disguise = Disguise::new(spellings).ok_or_else(|| TokenizeError::Vocabulary {
        at: "special tokens".to_owned(),
        why: "they are too many or too long".to_owned(),
    })?;
    for id in facts.prefix.iter().chain(&facts.suffix).chain(&facts.bos).chain(&facts.eos) {
        if facts.table.bytes(*id).is_none() {
            let why = format!("the vocabulary has {} entries", facts.table.len());
            return Err(TokenizeError::Vocabulary { at: format!("id {id} of BOS, EOS or the prompt's frame"), why });
        }
    }
    let in_pieces = takes_pieces(&pipeline);
    let Facts { table, prefix, suffix, bos, eos } = facts;
    let max_text_bytes = DEFAULT_MAX_TEXT_BYTES;
    Ok(Tokenizer { pipeline, plain, disguise, table, prefix, suffix, bos, eos, in_pieces, max_text_bytes })
}

/// Whether a text's ids are those of its pieces (see `pieces`): nothing is added at the start of a text, no added token reaches over
/// a border, and the pre-tokenizer starts a word at every kind of border.
fn takes_pieces(pipeline: &Pipeline) -> bool {
    use NormalizerWrapper::{NFC, NFD, NFKC, NFKD};
    let normalizer_is_local = matches!(pipeline.get_normalizer(), None | Some(NFC(_) | NFD(_) | NFKC(_) | NFKD(_)));
    let added_tokens_are_local = pipeline.get_added_vocabulary().get_added_tokens_decoder().values().all(|token| {
        let joins_left = token.lstrip && token.content.starts_with(char::is_alphanumeric);
        let joins_right = token.rstrip && token.content.ends_with(char::is_alphanumeric);
        let has_border = token.content.contains(|c: char| c.is_whitespace() || matches!(c, '\u{3002}' | '\u{FF0C}'));
        !joins_left && !joins_right && !has_border
    });
    let Some(pre_tokenizer) = pipeline.get_pre_tokenizer() else { return false };
    normalizer_is_local
        && added_tokens_are_local
        && PROBES.iter().all(|&(text, at)| {
            let mut split = PreTokenizedString::from(text);
            pre_tokenizer.pre_tokenize(&mut split).is_ok()
                && split.get_splits(OffsetReferential::Original, OffsetType::Byte).iter().any(|(_, offsets, _)| offsets.0 == at)
        })
}

//! The tokenizer of one model: text to ids, ids to bytes. Does not know where its vocabulary came from.

use std::path::Path;

use tokenizers::{
    AddedVocabulary, Model, NormalizedString, OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer, Token,
    Tokenizer as Pipeline,
};

use crate::disguise::{Disguise, Disguised};
use crate::pieces::{AIM_BYTES, HARD_BYTES, pieces};
use crate::token_table::{TokenKind, TokenTable};
use crate::{ChatMessage, ChatTemplate, GgufVocab, TokenizeError, gguf, hub};

/// Longest text in bytes unless set otherwise: up to a second of work. A model whose context holds more sets a higher limit.
pub const DEFAULT_MAX_TEXT_BYTES: usize = 1 << 20;

/// A byte-pair tokenizer, shared by all requests (`Send + Sync`; put it into an `Arc`).
///
/// Encoding is blocking work in proportion to the text, about 2 MB/s; it never recurses with the text.
/// Ids are those of the hub's `tokenizers` library, except in runs of over 256 KiB without any word border.
/// Characters that a vocabulary cannot spell (some lack bytes that no UTF-8 text of their training had) are left out, as there.
pub struct Tokenizer {
    pub(crate) pipeline: Pipeline,
    /// The added vocabulary that takes special tokens as plain text; the pipeline's own recognises them.
    pub(crate) plain: AddedVocabulary,
    pub(crate) disguise: Disguise,
    pub(crate) table: TokenTable,
    /// Put before and after a raw prompt (BOS, EOS).
    pub(crate) prefix: Vec<u32>,
    pub(crate) suffix: Vec<u32>,
    pub(crate) bos: Option<u32>,
    pub(crate) eos: Option<u32>,
    /// Whether text may be encoded in pieces.
    pub(crate) in_pieces: bool,
    pub(crate) max_text_bytes: usize,
}

/// What becomes of special tokens spelled in a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Specials {
    Recognised,
    PlainText,
}

impl Tokenizer {
    /// A tokenizer from the vocabulary inside a GGUF file.
    ///
    /// # Errors
    /// [`TokenizeError::UnsupportedModel`], [`TokenizeError::UnsupportedPreTokenizer`], or [`TokenizeError::Vocabulary`] when
    /// the vocabulary contradicts itself.
    pub fn from_gguf(vocab: &GgufVocab) -> Result<Self, TokenizeError> {
        gguf::build(vocab)
    }

    /// A tokenizer from the hub's `tokenizer.json`, with BOS and EOS from `tokenizer_config.json` where given.
    ///
    /// # Errors
    /// [`TokenizeError::File`] when a file cannot be read or understood, [`TokenizeError::UnsupportedModel`] when it is not BPE.
    pub fn from_files(tokenizer_json: &Path, tokenizer_config: Option<&Path>) -> Result<Self, TokenizeError> {
        hub::build(tokenizer_json, tokenizer_config)
    }

    /// Sets the longest text that the encode methods take, in bytes of UTF-8.
    #[must_use]
    pub fn with_max_text_bytes(mut self, bytes: usize) -> Self {
        self.max_text_bytes = bytes;
        self
    }

    /// The ids of a raw prompt. Special tokens spelled in it are recognised, as for completions elsewhere; BOS (and EOS) are added
    /// if the tokenizer says so, also when the text spells one.
    ///
    /// # Errors
    /// [`TokenizeError::TextTooLong`], [`TokenizeError::Encode`].
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, TokenizeError> {
        self.check_length(text)?;
        let mut ids = self.prefix.clone();
        self.extend(&mut ids, text, Specials::Recognised)?;
        ids.extend_from_slice(&self.suffix);
        Ok(ids)
    }

    /// The ids of a rendered chat. Special tokens of the template are recognised; special tokens that a message spells are plain
    /// text, so no message can end its turn or begin another's. No BOS is added: it is the template's to write.
    ///
    /// # Errors
    /// Those of [`ChatTemplate::render`], [`TokenizeError::TextTooLong`], [`TokenizeError::NoPrivateCharacterLeft`],
    /// [`TokenizeError::Encode`].
    pub fn encode_chat(&self, template: &ChatTemplate, messages: &[ChatMessage]) -> Result<Vec<u32>, TokenizeError> {
        let texts = messages.iter().flat_map(|m| [&m.role, &m.content].into_iter().chain(&m.name));
        let bytes = texts.fold(0_usize, |sum, text| sum.saturating_add(text.len()));
        if bytes > self.max_text_bytes {
            return Err(TokenizeError::TextTooLong { bytes, limit: self.max_text_bytes });
        }
        let disguised = self.disguise.apply(messages, template.private_characters())?;
        let text = template.render(disguised.as_ref().map_or(messages, |disguised| &disguised.messages))?;
        self.check_length(&text)?;
        let mut ids = Vec::with_capacity(text.len() / 4);
        match disguised {
            None => self.extend(&mut ids, &text, Specials::Recognised)?,
            Some(disguised) => self.extend_disguised(&mut ids, &text, &disguised)?,
        }
        Ok(ids)
    }

    /// The bytes of a token as they appear in text (for a special token: its spelling); `None` outside of the vocabulary.
    #[must_use]
    pub fn token_bytes(&self, id: u32) -> Option<&[u8]> {
        self.table.bytes(id)
    }

    /// All ids are below this.
    #[must_use]
    pub fn vocab_size(&self) -> usize {
        self.table.len()
    }

    /// Bytes of the longest token that is part of text: a text of `n` bytes has at least `n / max_token_bytes()` tokens, so that
    /// what cannot fit into a model's context can be refused before it is encoded.
    #[must_use]
    pub fn max_token_bytes(&self) -> usize {
        self.table.longest_text()
    }

    /// Whether the token is one of control, which never is part of the text.
    #[must_use]
    pub fn is_special(&self, id: u32) -> bool {
        self.table.kind(id) == TokenKind::Special
    }

    /// The id of the special token with exactly this spelling. A stop string that is one must become a stop id: special tokens
    /// have no text for a stop string to match.
    #[must_use]
    pub fn special_id(&self, spelling: &str) -> Option<u32> {
        self.pipeline.get_added_vocabulary().get_vocab().get(spelling).copied().filter(|&id| self.is_special(id))
    }

    #[must_use]
    pub fn bos(&self) -> Option<u32> {
        self.bos
    }

    #[must_use]
    pub fn eos(&self) -> Option<u32> {
        self.eos
    }

    pub(crate) fn token_kind(&self, id: u32) -> TokenKind {
        self.table.kind(id)
    }

    fn check_length(&self, text: &str) -> Result<(), TokenizeError> {
        if text.len() > self.max_text_bytes {
            return Err(TokenizeError::TextTooLong { bytes: text.len(), limit: self.max_text_bytes });
        }
        Ok(())
    }

    fn extend(&self, ids: &mut Vec<u32>, text: &str, specials: Specials) -> Result<(), TokenizeError> {
        let (aim, hard) = if self.in_pieces { (AIM_BYTES, HARD_BYTES) } else { (usize::MAX, usize::MAX) };
        pieces(text, aim, hard).try_for_each(|piece| self.extend_piece(ids, piece, specials))
    }

    /// The library's own steps, so that special tokens can be taken either way with one copy of the vocabulary, and so that
    /// truncation and padding, which some files ask for, never apply.
    fn extend_piece(&self, ids: &mut Vec<u32>, piece: &str, specials: Specials) -> Result<(), TokenizeError> {
        let added = match specials {
            Specials::Recognised => self.pipeline.get_added_vocabulary(),
            Specials::PlainText => &self.plain,
        };
        let mut split = added.extract_and_normalize(self.pipeline.get_normalizer(), piece);
        if let Some(pre_tokenizer) = self.pipeline.get_pre_tokenizer() {
            pre_tokenizer.pre_tokenize(&mut split).map_err(|error| failed(&error))?;
        }
        split.tokenize(|word| self.word(word, specials)).map_err(|error| failed(&error))?;
        push_ids(ids, &split);
        Ok(())
    }

    fn word(&self, word: &NormalizedString, specials: Specials) -> tokenizers::Result<Vec<Token>> {
        let model = self.pipeline.get_model();
        let tokens = model.tokenize(word.get())?;
        if specials == Specials::Recognised || !tokens.iter().any(|token| self.is_special(token.id)) {
            return Ok(tokens);
        }
        // A vocabulary that takes whole words before merges can hit upon a special token's spelling: spell the word out instead.
        let mut spelled = Vec::new();
        for (at, character) in word.get().char_indices() {
            let part = word.get().get(at..at + character.len_utf8()).unwrap_or_default();
            spelled.extend(model.tokenize(part)?.into_iter().filter(|token| !self.is_special(token.id)));
        }
        Ok(spelled)
    }

    fn extend_disguised(&self, ids: &mut Vec<u32>, text: &str, disguised: &Disguised) -> Result<(), TokenizeError> {
        let added = self.pipeline.get_added_vocabulary();
        let split = added.extract_and_normalize(None::<&tokenizers::NormalizerWrapper>, text);
        for (part, _, tokens) in split.get_splits(OffsetReferential::Original, OffsetType::None) {
            match tokens {
                Some(tokens) => ids.extend(tokens.iter().map(|token| token.id)),
                None => self.extend(ids, &disguised.restore(part), Specials::PlainText)?,
            }
        }
        Ok(())
    }
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer")
            .field("vocab_size", &self.vocab_size())
            .field("bos", &self.bos)
            .field("eos", &self.eos)
            .field("prefix", &self.prefix)
            .field("suffix", &self.suffix)
            .field("in_pieces", &self.in_pieces)
            .finish_non_exhaustive()
    }
}

fn push_ids(ids: &mut Vec<u32>, split: &PreTokenizedString) {
    for (_, _, tokens) in split.get_splits(OffsetReferential::Original, OffsetType::None) {
        ids.extend(tokens.iter().flatten().map(|token| token.id));
    }
}

fn failed(error: &tokenizers::Error) -> TokenizeError {
    TokenizeError::Encode { why: error.to_string() }
}

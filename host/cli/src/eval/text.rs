//! The text that is scored: read from a file and tokenized by the checkpoint's own tokenizer, or ids as they are; and tokens as
//! text for reports. Knows no model.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use millrace_model::Checkpoint;
use millrace_node::tokenizer_of;
use millrace_tokenize::Tokenizer;

use super::ids::read_ids;
use crate::UsageError;
use crate::output::read_bounded;

/// A text larger than this is a corpus, not something to wait for.
const MAX_TEXT_BYTES: u64 = 16 << 20;

/// Exactly one of the two.
#[derive(Args)]
#[group(required = true, multiple = false)]
pub(super) struct TextArgs {
    /// A text in UTF-8; the checkpoint's tokenizer makes tokens of it.
    #[arg(long)]
    text: Option<PathBuf>,
    /// Token ids instead, where there is no tokenizer: a JSON list, or a safetensors file with `ids`.
    #[arg(long)]
    ids: Option<PathBuf>,
}

/// What is scored.
pub(super) struct Text {
    pub(super) ids: Vec<u32>,
    /// Put before every window but the first.
    pub(super) lead: Option<u32>,
    tokenizer: Option<Tokenizer>,
    /// The file's text, where it was one.
    source: Option<String>,
}

impl Text {
    pub(super) fn read(args: &TextArgs, checkpoint: &Checkpoint) -> Result<Self> {
        match (&args.text, &args.ids) {
            (Some(path), _) => {
                let source = read_text(path)?;
                let tokenizer = tokenizer(checkpoint)?.with_context(|| {
                    let model = checkpoint.path().display();
                    format!("{model}: the checkpoint has no tokenizer; give the text's token ids with --ids")
                })?;
                let ids = tokenizer.encode(&source).with_context(|| path.display().to_string())?;
                ensure!(ids.len() >= 2, "{}: {} token; a text of at least 2 is needed", path.display(), ids.len());
                let lead = tokenizer.bos().filter(|bos| ids.first() == Some(bos));
                Ok(Self { ids, lead, tokenizer: Some(tokenizer), source: Some(source) })
            }
            (None, Some(path)) => {
                let ids = read_ids(path)?;
                ensure!(
                    ids.len() >= 2,
                    "{}: {} id; at least 2 are needed, the first to predict the second",
                    path.display(),
                    ids.len()
                );
                // Only shows what ids mean: a report can do without.
                let tokenizer = tokenizer(checkpoint).unwrap_or_default();
                Ok(Self { ids, lead: None, tokenizer, source: None })
            }
            (None, None) => bail!(UsageError("give a text with --text FILE, or token ids with --ids FILE".to_owned())),
        }
    }

    /// How another checkpoint's tokenizer takes the text: `None` where it says the same or nobody can know, else what differs.
    pub(super) fn other_tokenizer(&self, other: &Checkpoint) -> Result<Option<String>> {
        let (Some(source), Some(tokenizer)) = (&self.source, tokenizer(other)?) else { return Ok(None) };
        let theirs = tokenizer.encode(source)?;
        if theirs == self.ids {
            return Ok(None);
        }
        let at = self.ids.iter().zip(&theirs).take_while(|(ours, theirs)| ours == theirs).count();
        Ok(Some(format!(
            "it makes {} tokens of the text instead of {}, different from token {at} on",
            theirs.len(),
            self.ids.len()
        )))
    }

    /// A token as a report shows it: its text in quotes, or its id.
    pub(super) fn token(&self, id: u32) -> String {
        let bytes = self.tokenizer.as_ref().and_then(|tokenizer| tokenizer.token_bytes(id));
        bytes.map_or_else(|| format!("#{id}"), |bytes| format!("{:?}", String::from_utf8_lossy(bytes)))
    }

    /// The last few tokens before `token`, as text in quotes or as ids.
    pub(super) fn before(&self, token: usize) -> String {
        const TOKENS: usize = 12;
        let ids = self.ids.get(token.saturating_sub(TOKENS)..token).unwrap_or_default();
        match &self.tokenizer {
            Some(tokenizer) => {
                let bytes: Vec<u8> = ids.iter().filter_map(|&id| tokenizer.token_bytes(id)).flatten().copied().collect();
                format!("{:?}", String::from_utf8_lossy(&bytes))
            }
            None => ids.iter().map(|id| format!("#{id}")).collect::<Vec<_>>().join(" "),
        }
    }
}

fn tokenizer(checkpoint: &Checkpoint) -> Result<Option<Tokenizer>> {
    let tokenizer = tokenizer_of(checkpoint).with_context(|| checkpoint.path().display().to_string())?;
    Ok(tokenizer.map(|tokenizer| tokenizer.with_max_text_bytes(MAX_TEXT_BYTES as usize)))
}

fn read_text(path: &Path) -> Result<String> {
    let name = path.display();
    let bytes = read_bounded(path, MAX_TEXT_BYTES, "a text to score")?;
    String::from_utf8(bytes).with_context(|| format!("{name}: not UTF-8; convert it first"))
}

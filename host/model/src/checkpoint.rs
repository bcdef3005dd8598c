//! Checkpoints: a GGUF file or a hub directory, memory-mapped, with every offset and size checked against the files.
//! Tensors and configuration values carry the hub's names in both. Does not know what an architecture needs.

mod config;
mod digest;
mod file;
mod gguf;
mod hub;
mod quantization;
mod safetensors;
mod stored;
mod view;
mod vocab;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::path::{Path, PathBuf};

use millrace_ops::TensorView;

pub use config::{Config, Flag};
pub(crate) use stored::StoredTensor;
pub use vocab::{GgufVocabData, TokenizerSource};

use crate::CheckpointError;
use file::MappedFile;
use gguf::Gguf;
use hub::Hub;
use quantization::Quantization;
use stored::TensorTable;
use view::Views;

/// A template is a page of text; this bounds what its compiler is given.
const MAX_TEMPLATE: usize = 1 << 20;

/// Before the names of the text model's tensors in a wrapper.
const WRAPPED: &str = "language_model.";

/// An open checkpoint. Its files stay mapped until it is dropped and must not be shortened meanwhile; to replace one, rename
/// a new file over it.
pub struct Checkpoint {
    path: PathBuf,
    source: Source,
    quantization: Quantization,
    eos_tokens: Vec<u32>,
    digest: String,
}

enum Source {
    Gguf(Box<Gguf>),
    Hub(Box<Hub>),
}

impl Checkpoint {
    /// Opens a GGUF file or a hub directory and checks its headers; reads no weights but a few bytes for the digest.
    ///
    /// # Errors
    /// [`CheckpointError`], naming the file and what to do.
    pub fn open(path: &Path) -> Result<Self, CheckpointError> {
        let source = if path.is_dir() {
            Source::Hub(Box::new(Hub::read(path)?))
        } else {
            Source::Gguf(Box::new(Gguf::read(open_gguf(path)?)?))
        };
        let (config, table) = source.parts();
        let quantization = Quantization::read(config)?;
        let eos_tokens = match &source {
            Source::Gguf(gguf) => gguf.eos_tokens(),
            Source::Hub(hub) => hub.eos_tokens.clone(),
        };
        let digest = digest::digest(config, table);
        let checkpoint = Self { path: path.to_path_buf(), quantization, eos_tokens, digest, source };
        if checkpoint.chat_template().is_some_and(|t| t.len() > MAX_TEMPLATE) {
            let what = format!("a chat template of more than {MAX_TEMPLATE} bytes");
            return Err(CheckpointError::unsupported(path, what, "use the model's original template"));
        }
        Ok(checkpoint)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Configuration under the hub's keys; an architecture reads its own from it.
    pub fn config(&self) -> &Config {
        self.source.parts().0
    }

    /// The tensor of a hub name, `model.layers.0.self_attn.q_proj.weight`, whichever way it is stored.
    ///
    /// # Errors
    /// [`CheckpointError::MissingTensor`], or what is wrong with it.
    pub fn tensor(&self, name: &str) -> Result<TensorView<'_>, CheckpointError> {
        let table = self.source.parts().1;
        Views { table, quantization: &self.quantization, path: &self.path }.view(&self.stored_name(name))
    }

    /// Rows and columns of a tensor by what its file says of it, its values and scales unread; a vector is one row. `None`: it
    /// is not there; `Some(None)`: it has no such shape, and [`Self::tensor`] says why.
    pub(crate) fn stored_shape(&self, name: &str) -> Option<Option<(usize, usize)>> {
        let (table, name) = (self.source.parts().1, self.stored_name(name));
        if let Some(tensor) = table.entries.get(name.as_ref()) {
            return Some(tensor.matrix().filter(|_| !tensor.kind.is_no_weight()));
        }
        let codes = table.entries.get(&format!("{name}_packed"))?;
        let views = Views { table, quantization: &self.quantization, path: &self.path };
        let said = views.logical_shape(&name).ok().map(|[rows, cols]| (rows, cols));
        Some(said.filter(|(rows, cols)| codes.matrix() == Some((*rows, cols.div_ceil(view::CODES_PER_WORD)))))
    }

    /// Whether a tensor of the text model has a name that begins so.
    pub(crate) fn has_any(&self, beginning: &str) -> bool {
        let beginning = self.stored_name(beginning);
        let from = (Bound::Included(beginning.as_ref()), Bound::Unbounded);
        let mut names = self.source.parts().1.entries.range::<str, _>(from);
        names.next().is_some_and(|(name, _)| name.starts_with(beginning.as_ref()))
    }

    /// What the text model calls a stored tensor; `None` for what else a wrapper holds.
    pub(crate) fn text_name<'n>(&self, stored: &'n str) -> Option<&'n str> {
        if self.config().is_wrapped() { stored.strip_prefix(WRAPPED) } else { Some(stored) }
    }

    /// The name that a tensor of the text model is stored under: wrappers put theirs before it.
    pub(crate) fn stored_name<'n>(&self, name: &'n str) -> Cow<'n, str> {
        if self.config().is_wrapped() { format!("{WRAPPED}{name}").into() } else { name.into() }
    }

    /// The error for a tensor that does not fit, naming the file that holds it.
    pub(crate) fn tensor_error(&self, name: &str, why: impl Into<String>) -> CheckpointError {
        let path = self.file_of(name).unwrap_or(&self.path);
        CheckpointError::tensor(path, name, why)
    }

    /// The file that holds a tensor (packed: its codes), by its hub name or the name that it is stored under.
    pub(crate) fn file_of(&self, name: &str) -> Option<&Path> {
        let table = self.source.parts().1;
        let stored = self.stored_name(name);
        let found = |name: &str| table.entries.get(name).or_else(|| table.entries.get(&format!("{name}_packed")));
        let entry = found(name).or_else(|| found(&stored))?;
        table.files.get(entry.file).map(MappedFile::path)
    }

    /// Whether [`Self::tensor`] has something to look at.
    pub fn has_tensor(&self, name: &str) -> bool {
        let (entries, name) = (&self.source.parts().1.entries, self.stored_name(name));
        entries.contains_key(name.as_ref()) || entries.contains_key(&format!("{name}_packed"))
    }

    /// The values of a vector of `length` elements, rotary pairs put in the hub's order.
    ///
    /// # Errors
    /// As for [`Self::tensor`], and where its length is another.
    pub fn vector(&self, name: &str, length: usize) -> Result<Vec<f32>, CheckpointError> {
        let view = self.tensor(name)?;
        if (view.rows, view.cols) != (1, length) {
            return Err(self.tensor_error(name, format!("has shape [{}, {}], not [{length}]", view.rows, view.cols)));
        }
        let mut stored = vec![0.0; length];
        TensorView { order: millrace_ops::RowOrder::AsStored, ..view }.row_values(0, &mut stored);
        Ok((0..length).map(|row| stored.get(view.stored_row(row)).copied().unwrap_or_default()).collect())
    }

    /// Whether projections are stored quantized (tables do not count): then those that are not were left so by intent.
    pub fn is_quantized(&self) -> bool {
        let tables = ["model.embed_tokens.weight", "lm_head.weight"];
        let tables = tables.map(|name| self.stored_name(name));
        let entries = &self.source.parts().1.entries;
        entries.iter().any(|(name, t)| t.kind.is_quantized() && !tables.iter().any(|table| table == name))
    }

    /// # Errors
    /// [`CheckpointError`] where a GGUF file's vocabulary is damaged.
    pub fn tokenizer(&self) -> Result<TokenizerSource, CheckpointError> {
        match &self.source {
            Source::Gguf(gguf) => Ok(gguf.vocabulary()?.map_or(TokenizerSource::Missing, TokenizerSource::Gguf)),
            Source::Hub(hub) => Ok(hub.tokenizer()),
        }
    }

    /// Jinja source.
    pub fn chat_template(&self) -> Option<&str> {
        match &self.source {
            Source::Gguf(gguf) => gguf.chat_template(),
            Source::Hub(hub) => hub.chat_template.as_deref(),
        }
    }

    /// Ids that end a sequence; may be empty.
    pub fn eos_tokens(&self) -> &[u32] {
        &self.eos_tokens
    }

    /// 64 hexadecimal digits that name weights and configuration. Tells apart models, versions, quantizations and fine-tunes
    /// by names, shapes, sizes, configuration and sampled bytes; it is no proof that two files are equal.
    pub fn digest(&self) -> &str {
        &self.digest
    }

    /// One line for logs: kind, architecture, tensors by type, bytes.
    pub fn summary(&self) -> String {
        let (config, table) = self.source.parts();
        let kind = match &self.source {
            Source::Gguf(gguf) => format!("GGUF v{}", gguf.version),
            Source::Hub(_) => format!("hub directory, {} file(s)", table.files.len()),
        };
        let mut types: BTreeMap<&str, usize> = BTreeMap::new();
        for tensor in table.entries.values() {
            let count = types.entry(tensor.kind.name()).or_default();
            *count = count.saturating_add(1);
        }
        let types: Vec<String> = types.iter().map(|(name, count)| format!("{count} {name}")).collect();
        let (architecture, tensors, bytes) = (config.architecture(), table.entries.len(), table.total_bytes());
        format!("{kind}, {architecture}, {tensors} tensors ({}), {bytes} bytes", types.join(", "))
    }

    /// Every stored tensor under its own name, for whoever reads the files' bytes.
    pub(crate) fn stored(&self) -> impl Iterator<Item = (&str, &StoredTensor)> {
        self.source.parts().1.entries.iter().map(|(name, tensor)| (name.as_str(), tensor))
    }

    /// The files, as [`StoredTensor::file`] counts them.
    pub(crate) fn files(&self) -> impl Iterator<Item = &Path> {
        self.source.parts().1.files.iter().map(MappedFile::path)
    }

    /// Names of all stored tensors, companions of quantized ones included.
    pub fn tensor_names(&self) -> impl Iterator<Item = &str> {
        self.source.parts().1.entries.keys().map(String::as_str)
    }
}

impl Source {
    fn parts(&self) -> (&Config, &TensorTable) {
        match self {
            Self::Gguf(gguf) => (&gguf.config, &gguf.table),
            Self::Hub(hub) => (&hub.config, &hub.table),
        }
    }
}

fn open_gguf(path: &Path) -> Result<MappedFile, CheckpointError> {
    let file = MappedFile::open(path)?;
    if file.bytes().starts_with(&gguf::MAGIC) {
        return Ok(file);
    }
    let found = if path.extension().is_some_and(|e| e == "safetensors") {
        "a safetensors file alone; give its directory"
    } else {
        "a file that does not begin with `GGUF`"
    };
    Err(CheckpointError::NotACheckpoint { path: path.to_path_buf(), found: found.to_owned() })
}

//! The checkpoints that a deployment's pools take their weights from: the model's own, and others of the same model in other
//! formats. Knows what must agree between them; not what is in them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use millrace_config::{Config, Model, Pool};
use millrace_model::{Checkpoint, TokenizerAgreement, check_agreement};
use sha2::{Digest as _, Sha256};

use crate::error::StartError;

pub(crate) struct Checkpoints {
    own: Checkpoint,
    /// By the path that pools give.
    others: BTreeMap<PathBuf, Checkpoint>,
}

impl Checkpoints {
    /// Opens all of them and checks that they are one model.
    ///
    /// # Errors
    /// What is wrong with a checkpoint, or what differs between two, before any weight is read.
    pub(crate) fn open(config: &Config, model: &Model) -> Result<Self, StartError> {
        let own = open(&model.path)?;
        for part in &millrace_model::spec_of(own.config())?.skipped {
            tracing::info!(model = model.name, "{part}");
        }
        let mut others = BTreeMap::new();
        for (pool, path) in config.pools.iter().filter_map(|pool| Some((pool, pool.checkpoint.clone()?))) {
            if others.contains_key(&path) {
                continue;
            }
            let checkpoint = open(&path)?;
            match check_agreement(&own, &checkpoint)? {
                TokenizerAgreement::Same | TokenizerAgreement::OneMissing => {}
                TokenizerAgreement::OtherKind => tracing::warn!(
                    pool = pool.name,
                    "the tokenizers of the two checkpoints are of different kinds and were not compared; the model's own is used"
                ),
                TokenizerAgreement::Different => {
                    return Err(StartError::Tokenizers { pool: pool.name.clone(), own: model.path.clone(), other: path });
                }
            }
            others.insert(path, checkpoint);
        }
        Ok(Self { own, others })
    }

    /// The model's own, whose tokenizer and template serve.
    pub(crate) fn own(&self) -> &Checkpoint {
        &self.own
    }

    /// Where a pool's weights come from.
    pub(crate) fn of(&self, pool: &Pool) -> &Checkpoint {
        pool.checkpoint.as_ref().and_then(|path| self.others.get(path)).unwrap_or(&self.own)
    }

    /// Names all weights that the model is served from; both sides of a hand-off must have it in common.
    pub(crate) fn digest(&self) -> String {
        if self.others.is_empty() {
            return self.own.digest().to_owned();
        }
        let mut hash = Sha256::new();
        // Digests are of one length, so they do not run together.
        hash.update(self.own.digest());
        self.others.values().for_each(|checkpoint| hash.update(checkpoint.digest()));
        hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

fn open(path: &Path) -> Result<Checkpoint, StartError> {
    let path = expand_home(path)?;
    let checkpoint = Checkpoint::open(&path)?;
    tracing::info!(path = %path.display(), digest = checkpoint.digest(), "opened {}", checkpoint.summary());
    if let Some(line) = millrace_model::unused_tensors(&checkpoint)? {
        tracing::warn!(path = %path.display(), "{line}");
    }
    Ok(checkpoint)
}

/// `~/x` is below the home of whoever runs the server.
pub(crate) fn expand_home(path: &Path) -> Result<PathBuf, StartError> {
    let Ok(rest) = path.strip_prefix("~") else { return Ok(path.to_owned()) };
    let home = std::env::var_os("HOME").filter(|home| !home.is_empty()).ok_or_else(|| StartError::NoHome(path.to_owned()))?;
    Ok(Path::new(&home).join(rest))
}

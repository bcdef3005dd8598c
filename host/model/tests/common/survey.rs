//! Everything that can be done with a checkpoint that may be damaged.

use std::path::Path;

use millrace_core::StageRecipe;
use millrace_cpu::CpuBackend;
use millrace_model::{Checkpoint, WeightCache, load, spec_of};

/// Opens, looks at every tensor and loads; the errors of all steps, none where everything worked.
pub(crate) fn survey(path: &Path, backend: Option<&CpuBackend>) -> Vec<String> {
    let checkpoint = match Checkpoint::open(path) {
        Ok(checkpoint) => checkpoint,
        Err(error) => return vec![error.to_string()],
    };
    let mut errors = Vec::new();
    errors.extend(checkpoint.tokenizer().err().map(|error| error.to_string()));
    errors.extend(spec_of(checkpoint.config()).err().map(|error| error.to_string()));
    let _ = (checkpoint.summary(), checkpoint.chat_template(), checkpoint.eos_tokens(), checkpoint.digest());
    for name in checkpoint.tensor_names() {
        for name in [name, name.trim_end_matches("_packed")] {
            if let Ok(view) = checkpoint.tensor(name)
                && view.cols < 1 << 20
            {
                let mut row = vec![0.0; view.cols];
                view.row_values(view.rows - 1, &mut row);
            }
        }
    }
    if let Some(backend) = backend {
        let loaded = load(&checkpoint, backend, StageRecipe::Stored, &mut WeightCache::new());
        errors.extend(loaded.err().map(|error| error.to_string()));
    }
    errors
}

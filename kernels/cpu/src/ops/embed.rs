//! Embed: rows of the embedding table by token. Knows no tokenizer.

use millrace_ops::{BackendError, Embed, WeightMemory};

use crate::memory::Region;
use crate::ops::weights::Prepared;
use crate::task::{Arguments, Task, Worker, product};

pub(crate) struct EmbedTask {
    arguments: Arguments,
    table: Prepared,
    tokens: Region,
    out: Region,
    rows: usize,
}

impl EmbedTask {
    pub(crate) fn new(arguments: Arguments, op: Embed) -> Result<Self, BackendError> {
        let Embed { table, tokens, out, rows } = op;
        let table = Prepared::new(arguments, table)?;
        let cols = table.packed(arguments)?.cols();
        let tokens = arguments.region("tokens", tokens, product(&[rows, 4]))?;
        let out = arguments.region("out", out, product(&[rows, cols, 4]))?;
        arguments.distinct(&tokens, &out)?;
        Ok(Self { arguments, table, tokens, out, rows })
    }
}

impl Task for EmbedTask {
    fn run(&self, _phase: usize, worker: &mut Worker<'_>) -> Result<(), BackendError> {
        let table = self.table.packed(self.arguments)?;
        // SAFETY: another buffer than `out`; nobody writes it in this phase.
        let tokens = unsafe { self.tokens.items::<u32>(0, self.rows) };
        let chunk = worker.chunk(self.rows);
        while let Some(range) = worker.take(chunk, self.rows) {
            for row in range {
                let token = tokens[row] as usize;
                self.arguments
                    .require(token < table.rows(), || format!("row {row} names token {token} of a table of {}", table.rows()))?;
                // SAFETY: this row belongs to the worker that took it.
                table.lookup(token, unsafe { self.out.items_mut(row * table.cols(), table.cols()) });
            }
        }
        Ok(())
    }
}

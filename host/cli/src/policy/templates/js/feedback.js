
export const feedback = {
  // wit/feedback.wit says which columns `outcomes` has; those that are read belong in `wants`.
  observe(outcomes) {
    const outcome = column(outcomes, kind.OUTCOME);
    for (let row = 0; row < outcomes.rows; row++) {
      if (outcome.get(row) === FAILED) learnt = Math.min(learnt + 1, 0xffffffff);
    }
  },
};

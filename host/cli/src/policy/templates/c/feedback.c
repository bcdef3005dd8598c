
// wit/feedback.wit says which columns `outcomes` has; those that are read belong in WANTS.
void exports_millrace_policy_feedback_observe(exports_millrace_policy_feedback_table_t *outcomes) {
  enum { FAILED = 3 };
  millrace_column outcome = MILLRACE_COLUMN(outcomes, MILLRACE_OUTCOME);
  for (uint32_t row = 0; row < outcomes->rows; row++)
    if (millrace_get(outcome, row, MILLRACE_ABSENT) == FAILED && learnt < UINT32_MAX) learnt++;
  exports_millrace_policy_feedback_table_free(outcomes);
}

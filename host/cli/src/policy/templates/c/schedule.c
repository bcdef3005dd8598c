// Oldest first: whoever waits longest runs next.
#include <stdlib.h>
#include <string.h>

#include "schedule_policy.h"

#include "millrace.h"

enum { HANDING_OFF = 2, RUNNING = 3 };

static const uint32_t WANTS[] = {MILLRACE_AGE_US, MILLRACE_STATE{{#feedback}}, MILLRACE_OUTCOME{{/feedback}}};
{{learnt}}

// What the comparison sees; a guest has one thread.
static millrace_column age;

static int older_first(const void *a, const void *b) {
  uint32_t left = *(const uint32_t *)a, right = *(const uint32_t *)b;
  uint32_t x = millrace_get(age, left, 0), y = millrace_get(age, right, 0);
  return x != y ? (x < y) - (x > y) : (left > right) - (left < right);
}

void exports_millrace_policy_schedule_plan_step(exports_millrace_policy_schedule_budget_t *budget,
                                                exports_millrace_policy_schedule_table_t *rows,
                                                exports_millrace_policy_schedule_table_t *tenants,
                                                exports_millrace_policy_schedule_plan_t *plan) {
{{#unheard}}
  learnt++;
{{/unheard}}
  millrace_column state = MILLRACE_COLUMN(rows, MILLRACE_STATE);
  bool decode = budget->stage == MILLRACE_POLICY_TYPES_STAGE_DECODE;
  uint32_t *run = malloc((rows->rows + 1) * sizeof *run);
  size_t count = 0;
  for (uint32_t row = 0; row < rows->rows; row++) {
    // Each engine sees all its sequences; those that belong to the other or are on their way cannot run.
    uint32_t is = millrace_get(state, row, 0);
    if (is != HANDING_OFF && (is != RUNNING || decode)) run[count++] = row;
  }
  age = MILLRACE_COLUMN(rows, MILLRACE_AGE_US);
  qsort(run, count, sizeof *run, older_first);
  if (count > budget->sequences) count = budget->sequences;
  if (count > budget->tokens) count = budget->tokens;
  // If pages run out, the youngest gives way first.
  uint32_t *preempt = malloc((count + 1) * sizeof *preempt);
  for (size_t i = 0; i < count; i++) preempt[i] = run[count - 1 - i];
  // No token counts: the host's default.
  *plan = (exports_millrace_policy_schedule_plan_t){.run = {run, count}, .preempt = {preempt, count}{{#beside}}, .reason = learnt{{/beside}}};
  exports_millrace_policy_schedule_table_free(rows);
  exports_millrace_policy_schedule_table_free(tenants);
}

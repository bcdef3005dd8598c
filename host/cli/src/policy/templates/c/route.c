// The eligible lane with the least work.
#include <stdlib.h>
#include <string.h>

#include "route_policy.h"

#include "millrace.h"

static const uint32_t WANTS[] = {MILLRACE_LANE_WAITING, MILLRACE_LANE_RUNNING, MILLRACE_ELIGIBLE{{#feedback}}, MILLRACE_OUTCOME{{/feedback}}};
{{learnt}}

// What the comparison sees; a guest has one thread.
static millrace_column waiting, running;

static uint64_t work(uint32_t row) {
  return (uint64_t)millrace_get(waiting, row, 0) + millrace_get(running, row, 0);
}

static int less_work_first(const void *a, const void *b) {
  uint32_t left = *(const uint32_t *)a, right = *(const uint32_t *)b;
  uint64_t x = work(left), y = work(right);
  return x != y ? (x > y) - (x < y) : (left > right) - (left < right);
}

void exports_millrace_policy_route_decide(exports_millrace_policy_route_request_t *request,
                                          exports_millrace_policy_route_table_t *lanes,
                                          exports_millrace_policy_route_table_t *tenants,
                                          exports_millrace_policy_route_decision_t *decision) {
{{#unheard}}
  learnt++;
{{/unheard}}
  millrace_column eligible = MILLRACE_COLUMN(lanes, MILLRACE_ELIGIBLE);
  uint32_t *rows = malloc((lanes->rows + 1) * sizeof *rows);
  size_t count = 0;
  for (uint32_t row = 0; row < lanes->rows; row++)
    if (millrace_get(eligible, row, 1) == 1) rows[count++] = row;
  waiting = MILLRACE_COLUMN(lanes, MILLRACE_LANE_WAITING);
  running = MILLRACE_COLUMN(lanes, MILLRACE_LANE_RUNNING);
  qsort(rows, count, sizeof *rows, less_work_first);
  decision->tag = EXPORTS_MILLRACE_POLICY_ROUTE_DECISION_FORWARD;
  decision->val.forward = (exports_millrace_policy_route_forward_t){.lanes = {rows, count}{{#beside}}, .reason = learnt{{/beside}}};
  exports_millrace_policy_route_request_free(request);
  exports_millrace_policy_route_table_free(lanes);
  exports_millrace_policy_route_table_free(tenants);
}

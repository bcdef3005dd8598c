// Typed views over the facts of a Millrace policy, and the column kinds. wit/column-kinds.wit says units and meaning.
// Include it behind the generated header of the world.
#ifndef MILLRACE_H
#define MILLRACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MILLRACE_ABSENT UINT32_MAX

// One fact for all rows, or a fact that the host did not send: then every row lacks it.
typedef struct {
  const uint32_t *values;
  size_t len;
} millrace_column;

// The column of a kind; `table` is a pointer to any world's table.
#define MILLRACE_COLUMN(table, wanted)                                     \
  ({                                                                       \
    millrace_column found = {NULL, 0};                                     \
    for (size_t i = 0; i < (table)->columns.len; i++)                      \
      if ((table)->columns.ptr[i].kind == (wanted))                        \
        found = (millrace_column){(table)->columns.ptr[i].values.ptr,      \
                                  (table)->columns.ptr[i].values.len};     \
    found;                                                                 \
  })

// The fact of a row, or `otherwise` where the row does not have it.
static inline uint32_t millrace_get(millrace_column column, uint32_t row, uint32_t otherwise) {
  if (row >= column.len || column.values[row] == MILLRACE_ABSENT) return otherwise;
  return column.values[row];
}

// A fact whose bits are a signed number; only a missing column gives `otherwise`.
static inline int32_t millrace_signed(millrace_column column, uint32_t row, int32_t otherwise) {
  return row < column.len ? (int32_t)column.values[row] : otherwise;
}

// Values of the kinds that name a format, one number for ever; more may come.
enum {
  MILLRACE_FORMAT_STORED = 0,
  MILLRACE_FORMAT_F32 = 1,
  MILLRACE_FORMAT_BF16 = 2,
  MILLRACE_FORMAT_FP8_E4M3 = 3,
  MILLRACE_FORMAT_INT8 = 4,
  MILLRACE_FORMAT_INT4 = 5,
};

// Column kinds, one number for ever.
enum {
  // tenants
  MILLRACE_WEIGHT = 1,
  MILLRACE_TOKENS_SERVED = 2,
  MILLRACE_TENANT_RUNNING = 3,
  MILLRACE_TENANT_WAITING = 4,
  MILLRACE_CACHED_PAGES = 5,
  MILLRACE_PAGE_QUOTA = 6,
  MILLRACE_TIER = 7,
  // schedule
  MILLRACE_TENANT = 20,
  MILLRACE_PRIORITY = 21,
  MILLRACE_AGE_US = 22,
  MILLRACE_SLACK_US = 23,
  MILLRACE_STATE = 24,
  MILLRACE_PROMPT_TOKENS = 25,
  MILLRACE_COMPUTED_TOKENS = 26,
  MILLRACE_CACHED_TOKENS = 27,
  MILLRACE_OUTPUT_TOKENS = 28,
  MILLRACE_MAX_OUTPUT_TOKENS = 29,
  MILLRACE_PAGES_HELD = 30,
  MILLRACE_PAGES_FOR_NEXT_STEP = 31,
  MILLRACE_PREEMPTIONS = 32,
  // lanes
  MILLRACE_LANE_WAITING = 40,
  MILLRACE_LANE_RUNNING = 41,
  MILLRACE_KV_USED_PER_MILLE = 42,
  MILLRACE_PREFIX_HIT_TOKENS = 43,
  MILLRACE_TTFT_US = 44,
  MILLRACE_ITL_US = 45,
  MILLRACE_FREE_PAGES = 46,
  MILLRACE_HEALTHY = 47,
  MILLRACE_LANE_PRECISION = 48,
  MILLRACE_ELIGIBLE = 49,
  MILLRACE_LANE_PREFILL_TOKENS_PER_S = 50,
  MILLRACE_LANE_DECODE_TOKENS_PER_S = 51,
  MILLRACE_LANE_STEP_US = 52,
  // precisions
  MILLRACE_PREFILL_WEIGHT_BITS = 60,
  MILLRACE_DECODE_WEIGHT_BITS = 61,
  MILLRACE_KV_BITS = 62,
  MILLRACE_KL_MICRONAT = 63,
  MILLRACE_RELATIVE_COST_PER_MILLE = 64,
  MILLRACE_LANES_READY = 65,
  MILLRACE_PRECISION_KV_USED_PER_MILLE = 66,
  MILLRACE_PRECISION_WAITING = 67,
  MILLRACE_PRECISION_PREFILL_TOKENS_PER_S = 68,
  MILLRACE_PRECISION_DECODE_TOKENS_PER_S = 69,
  MILLRACE_PREFILL_WEIGHT_FORMAT = 70,
  MILLRACE_DECODE_WEIGHT_FORMAT = 71,
  MILLRACE_KV_FORMAT = 72,
  MILLRACE_PREFILL_KV_FORMAT = 73,
  // outcomes, for `feedback`
  MILLRACE_OUTCOME = 80,
  MILLRACE_OUTCOME_LANE = 81,
  MILLRACE_OUTCOME_PRECISION = 82,
  MILLRACE_OUTCOME_QUEUED_US = 83,
  MILLRACE_OUTCOME_TTFT_US = 84,
  MILLRACE_OUTCOME_TOTAL_US = 85,
  MILLRACE_OUTCOME_REASON = 86,
};

#endif

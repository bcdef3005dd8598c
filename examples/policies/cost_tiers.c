// Cost-tiered precision: gold gets the most precise that is offered (BF16), bulk the cheapest weights with the smallest KV (INT4 and
// FP8 KV), standard the operator's first unless its pools are full. Only gold is never downgraded.
#include <stdlib.h>
#include <string.h>

#include "precision_policy.h"

#include "millrace.h"

enum { BULK = 0, STANDARD = 1, GOLD = 2 };
// From here on pools count as full.
enum { FULL_PER_MILLE = 900 };

static const uint32_t WANTS[] = {
    MILLRACE_TIER,    MILLRACE_PREFILL_WEIGHT_BITS, MILLRACE_DECODE_WEIGHT_BITS,
    MILLRACE_KV_BITS, MILLRACE_LANES_READY,         MILLRACE_PRECISION_KV_USED_PER_MILLE,
};

// What is known of the precisions on offer.
typedef struct {
  uint32_t rows;
  millrace_column prefill, decode, kv, ready, used;
} offers;

static bool is_ready(const offers *all, uint32_t row) { return millrace_get(all->ready, row, 1) > 0; }

static bool is_full(const offers *all, uint32_t row) { return millrace_get(all->used, row, 0) >= FULL_PER_MILLE; }

// Bits that a decode step reads: weights first, then KV, then the weights of prefill. Unknown counts as 16.
static uint64_t bits(const offers *all, uint32_t row) {
  uint64_t decode = millrace_get(all->decode, row, 16), kv = millrace_get(all->kv, row, 16);
  return decode << 32 | kv << 16 | millrace_get(all->prefill, row, 16);
}

// The row with most bits (sign 1) or fewest (sign -1), of those with a lane that is ready; 0 where none is.
static uint32_t extreme(const offers *all, int sign) {
  uint32_t best = 0;
  bool found = false;
  for (uint32_t row = 0; row < all->rows; row++) {
    if (!is_ready(all, row)) continue;
    uint64_t new = bits(all, row), old = bits(all, best);
    if (!found || (sign > 0 ? new > old : new < old)) best = row;
    found = true;
  }
  return best;
}

static uint32_t first_ready(const offers *all) {
  for (uint32_t row = 0; row < all->rows; row++)
    if (is_ready(all, row)) return row;
  return 0;
}

void exports_millrace_policy_precision_choose(exports_millrace_policy_precision_list_ask_t *asks,
                                              exports_millrace_policy_precision_table_t *precisions,
                                              exports_millrace_policy_precision_table_t *tenants,
                                              exports_millrace_policy_precision_list_choice_t *choices) {
  offers all = {
      .rows = precisions->rows,
      .prefill = MILLRACE_COLUMN(precisions, MILLRACE_PREFILL_WEIGHT_BITS),
      .decode = MILLRACE_COLUMN(precisions, MILLRACE_DECODE_WEIGHT_BITS),
      .kv = MILLRACE_COLUMN(precisions, MILLRACE_KV_BITS),
      .ready = MILLRACE_COLUMN(precisions, MILLRACE_LANES_READY),
      .used = MILLRACE_COLUMN(precisions, MILLRACE_PRECISION_KV_USED_PER_MILLE),
  };
  uint32_t precise = extreme(&all, 1), cheap = extreme(&all, -1), first = first_ready(&all);
  millrace_column tier = MILLRACE_COLUMN(tenants, MILLRACE_TIER);
  choices->len = asks->len;
  choices->ptr = calloc(asks->len + 1, sizeof *choices->ptr);
  for (size_t i = 0; i < asks->len; i++) {
    uint32_t class = millrace_get(tier, asks->ptr[i].tenant, STANDARD);
    uint32_t standard = is_full(&all, first) ? cheap : first;
    choices->ptr[i].precision = class == GOLD ? precise : class == BULK ? cheap : standard;
    choices->ptr[i].may_downgrade = class != GOLD;
  }
  exports_millrace_policy_precision_list_ask_free(asks);
  exports_millrace_policy_precision_table_free(precisions);
  exports_millrace_policy_precision_table_free(tenants);
}

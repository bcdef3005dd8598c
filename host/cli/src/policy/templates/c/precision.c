// Bulk tenants take the cheapest precision, all others the operator's first.
#include <stdlib.h>
#include <string.h>

#include "precision_policy.h"

#include "millrace.h"

enum { BULK = 0, STANDARD = 1 };

static const uint32_t WANTS[] = {MILLRACE_TIER, MILLRACE_RELATIVE_COST_PER_MILLE{{#feedback}}, MILLRACE_OUTCOME{{/feedback}}};
{{learnt}}

void exports_millrace_policy_precision_choose(exports_millrace_policy_precision_list_ask_t *asks,
                                              exports_millrace_policy_precision_table_t *precisions,
                                              exports_millrace_policy_precision_table_t *tenants,
                                              exports_millrace_policy_precision_list_choice_t *choices) {
{{#unheard}}
  learnt++;
{{/unheard}}
  millrace_column tier = MILLRACE_COLUMN(tenants, MILLRACE_TIER);
  millrace_column cost = MILLRACE_COLUMN(precisions, MILLRACE_RELATIVE_COST_PER_MILLE);
  uint32_t cheapest = 0;
  for (uint32_t row = 1; row < precisions->rows; row++)
    if (millrace_get(cost, row, MILLRACE_ABSENT) < millrace_get(cost, cheapest, MILLRACE_ABSENT)) cheapest = row;
  choices->len = asks->len;
  choices->ptr = calloc(asks->len + 1, sizeof *choices->ptr);
  for (size_t i = 0; i < asks->len; i++) {
    bool is_cheap = millrace_get(tier, asks->ptr[i].tenant, STANDARD) <= BULK;
    choices->ptr[i].precision = is_cheap ? cheapest : 0;
    choices->ptr[i].may_downgrade = is_cheap;
{{#beside}}
    choices->ptr[i].reason = learnt;
{{/beside}}
  }
  exports_millrace_policy_precision_list_ask_free(asks);
  exports_millrace_policy_precision_table_free(precisions);
  exports_millrace_policy_precision_table_free(tenants);
}

// Typed views over the facts of a Millrace policy, and the column kinds. wit/column-kinds.wit says units and meaning.

export const ABSENT = 0xffffffff;

/// One fact for all rows, or a fact that the host did not send: then every row lacks it.
export class Column {
  constructor(values) {
    this.values = values;
  }

  /// The fact of a row, or `otherwise` where the row does not have it.
  get(row, otherwise = undefined) {
    const value = row < this.values.length ? this.values[row] : ABSENT;
    return value === ABSENT ? otherwise : value;
  }

  /// A fact whose bits are a signed number; -1 looks like an absent value, so only a missing column gives `otherwise`.
  signed(row, otherwise = 0) {
    return row < this.values.length ? this.values[row] | 0 : otherwise;
  }

  /// Whether the host sent the column.
  get isPresent() {
    return this.values.length > 0;
  }
}

/// The column of a kind from `kind`.
export function column(table, wanted) {
  const found = table.columns.find((one) => one.kind === wanted);
  return new Column(found ? found.values : []);
}

/// The rows of a table.
export function rows(table) {
  return Array.from({ length: table.rows }, (_, row) => row);
}

/// Rows of lanes that the host would take.
export function eligible(lanes) {
  const own = column(lanes, kind.ELIGIBLE);
  const flags = own.isPresent ? own : column(lanes, kind.HEALTHY);
  return rows(lanes).filter((row) => !flags.isPresent || flags.get(row) === 1);
}

/// Values of the kinds that name a format, one number for ever; more may come.
export const formats = Object.freeze({
  STORED: 0,
  F32: 1,
  BF16: 2,
  FP8_E4M3: 3,
  INT8: 4,
  INT4: 5,
});

/// Column kinds, one number for ever.
export const kind = Object.freeze({
  // tenants
  WEIGHT: 1,
  TOKENS_SERVED: 2,
  TENANT_RUNNING: 3,
  TENANT_WAITING: 4,
  CACHED_PAGES: 5,
  PAGE_QUOTA: 6,
  TIER: 7,
  // schedule
  TENANT: 20,
  PRIORITY: 21,
  AGE_US: 22,
  SLACK_US: 23,
  STATE: 24,
  PROMPT_TOKENS: 25,
  COMPUTED_TOKENS: 26,
  CACHED_TOKENS: 27,
  OUTPUT_TOKENS: 28,
  MAX_OUTPUT_TOKENS: 29,
  PAGES_HELD: 30,
  PAGES_FOR_NEXT_STEP: 31,
  PREEMPTIONS: 32,
  // lanes
  LANE_WAITING: 40,
  LANE_RUNNING: 41,
  KV_USED_PER_MILLE: 42,
  PREFIX_HIT_TOKENS: 43,
  TTFT_US: 44,
  ITL_US: 45,
  FREE_PAGES: 46,
  HEALTHY: 47,
  LANE_PRECISION: 48,
  ELIGIBLE: 49,
  LANE_PREFILL_TOKENS_PER_S: 50,
  LANE_DECODE_TOKENS_PER_S: 51,
  LANE_STEP_US: 52,
  // precisions
  PREFILL_WEIGHT_BITS: 60,
  DECODE_WEIGHT_BITS: 61,
  KV_BITS: 62,
  KL_MICRONAT: 63,
  RELATIVE_COST_PER_MILLE: 64,
  LANES_READY: 65,
  PRECISION_KV_USED_PER_MILLE: 66,
  PRECISION_WAITING: 67,
  PRECISION_PREFILL_TOKENS_PER_S: 68,
  PRECISION_DECODE_TOKENS_PER_S: 69,
  PREFILL_WEIGHT_FORMAT: 70,
  DECODE_WEIGHT_FORMAT: 71,
  KV_FORMAT: 72,
  PREFILL_KV_FORMAT: 73,
  // outcomes, for `feedback`
  OUTCOME: 80,
  OUTCOME_LANE: 81,
  OUTCOME_PRECISION: 82,
  OUTCOME_QUEUED_US: 83,
  OUTCOME_TTFT_US: 84,
  OUTCOME_TOTAL_US: 85,
  OUTCOME_REASON: 86,
});

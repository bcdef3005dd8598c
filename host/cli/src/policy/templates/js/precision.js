// Bulk tenants take the cheapest precision, all others the operator's first.
import { ABSENT, column, kind, rows } from "./millrace.js";

const STANDARD = 1;
// The policy's table in the deployment: config = { cheap_tier = 0 }; 0 bulk, 1 standard, 2 gold.
const DEFAULTS = { cheap_tier: 0 };
let settings = DEFAULTS;
{{learnt}}

// Everything that is wrong with a table, each a sentence that names the key.
function faults(config) {
  const found = Object.keys(config).filter((key) => !(key in DEFAULTS)).map((key) => `${key} is no key of this policy`);
  const tier = config.cheap_tier ?? 0;
  if (![0, 1, 2].includes(tier)) found.push(`cheap_tier is ${tier}; tiers are 0 bulk, 1 standard, 2 gold`);
  return found;
}

export const lifecycle = {
  init(config) {
    settings = { ...DEFAULTS, ...JSON.parse(config) };
    // The host copies these columns and no others.
    return { name: "{{name}}", version: "0.1.0", wants: [kind.TIER, kind.RELATIVE_COST_PER_MILLE{{#feedback}}, kind.OUTCOME{{/feedback}}] };
  },
  checkConfig(config) {
    const found = faults(JSON.parse(config));
    if (found.length > 0) throw found;
  },
};

export const precision = {
  choose(asks, precisions, tenants) {
{{#unheard}}
    learnt = (learnt + 1) >>> 0;
{{/unheard}}
    const tier = column(tenants, kind.TIER);
    const cost = column(precisions, kind.RELATIVE_COST_PER_MILLE);
    const dearness = (row) => cost.get(row, ABSENT);
    const cheapest = rows(precisions).reduce((best, row) => (dearness(row) < dearness(best) ? row : best), 0);
    return asks.map((ask) => {
      const isCheap = tier.get(ask.tenant, STANDARD) <= settings.cheap_tier;
      return { precision: isCheap ? cheapest : 0, mayDowngrade: isCheap, reason: {{#plain}}0{{/plain}}{{#beside}}learnt{{/beside}} };
    });
  },
};

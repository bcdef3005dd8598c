// Oldest first: whoever waits longest runs next.
import { column, kind, rows } from "./millrace.js";

const HANDING_OFF = 2;
const RUNNING = 3;
// The policy's table in the deployment: config = { young_us = 1000 }
const DEFAULTS = { young_us: 1 };
let settings = DEFAULTS;
{{learnt}}

// Everything that is wrong with a table, each a sentence that names the key.
function faults(config) {
  const found = Object.keys(config).filter((key) => !(key in DEFAULTS)).map((key) => `${key} is no key of this policy`);
  const young = config.young_us ?? 1;
  if (!Number.isInteger(young) || young < 1) found.push(`young_us is ${young}; use 1 or more microseconds`);
  return found;
}

export const lifecycle = {
  init(config) {
    settings = { ...DEFAULTS, ...JSON.parse(config) };
    // The host copies these columns and no others.
    return { name: "{{name}}", version: "0.1.0", wants: [kind.AGE_US, kind.STATE{{#feedback}}, kind.OUTCOME{{/feedback}}] };
  },
  checkConfig(config) {
    const found = faults(JSON.parse(config));
    if (found.length > 0) throw found;
  },
};

export const schedule = {
  planStep(budget, table, tenants) {
{{#unheard}}
    learnt = (learnt + 1) >>> 0;
{{/unheard}}
    const age = column(table, kind.AGE_US);
    const state = column(table, kind.STATE);
    const steps = rows(table).map((row) => Math.floor(age.get(row, 0) / settings.young_us));
    // Each engine sees all its sequences; those that belong to the other or are on their way cannot run.
    const barred = budget.stage === "decode" ? [HANDING_OFF] : [HANDING_OFF, RUNNING];
    const run = rows(table)
      .filter((row) => !barred.includes(state.get(row, 0)))
      .sort((a, b) => steps[b] - steps[a] || a - b)
      .slice(0, Math.min(budget.sequences, budget.tokens));
    // No token counts: the host's default. If pages run out, the youngest gives way first.
    return { run, tokens: [], preempt: [...run].reverse(), validSteps: 0, reason: {{#plain}}0{{/plain}}{{#beside}}learnt{{/beside}} };
  },
};

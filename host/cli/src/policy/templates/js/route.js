// The eligible lane with the least work.
import { column, eligible, kind } from "./millrace.js";

// The policy's table in the deployment: config = { max_waiting = 100 }
const DEFAULTS = { max_waiting: 1000 };
let settings = DEFAULTS;
{{learnt}}

// Everything that is wrong with a table, each a sentence that names the key.
function faults(config) {
  const found = Object.keys(config).filter((key) => !(key in DEFAULTS)).map((key) => `${key} is no key of this policy`);
  const bound = config.max_waiting ?? 1;
  if (!Number.isInteger(bound) || bound < 1) {
    found.push(`max_waiting is ${bound}; no request would ever be taken, so use 1 or more`);
  }
  return found;
}

export const lifecycle = {
  init(config) {
    settings = { ...DEFAULTS, ...JSON.parse(config) };
    // The host copies these columns and no others.
    return { name: "{{name}}", version: "0.1.0", wants: [kind.LANE_WAITING, kind.LANE_RUNNING, kind.ELIGIBLE{{#feedback}}, kind.OUTCOME{{/feedback}}] };
  },
  checkConfig(config) {
    const found = faults(JSON.parse(config));
    if (found.length > 0) throw found;
  },
};

export const route = {
  decide(request, lanes, tenants) {
{{#unheard}}
    learnt = (learnt + 1) >>> 0;
{{/unheard}}
    const waiting = column(lanes, kind.LANE_WAITING);
    const running = column(lanes, kind.LANE_RUNNING);
    const work = (row) => waiting.get(row, 0) + running.get(row, 0);
    const open = eligible(lanes).filter((row) => waiting.get(row, 0) < settings.max_waiting);
    if (open.length === 0) {
      return { tag: "refuse", val: { status: 503, retryAfterMs: 1000, reason: 1, message: "every lane is full" } };
    }
    open.sort((a, b) => work(a) - work(b) || a - b);
    return { tag: "forward", val: { lanes: open, priority: null, reason: {{#plain}}0{{/plain}}{{#beside}}learnt{{/beside}} } };
  },
};

// Session and prefix affinity: a request goes where its beginning is cached already, unless that lane is much busier than others.
//
// Where the host tells how much of the prompt each lane has cached, that decides. Otherwise a session keeps its lane by rendezvous
// hashing: every lane gets a number from session and lane, the greatest wins; a lane that comes or goes moves only its own sessions,
// and nothing has to be remembered. A cached token is worth `tokens_per_request` of a queue: beyond that the shorter queue wins.
import { column, eligible, kind } from "./millrace.js";

// Key: default, least and greatest value of the policy's table.
const KEYS = {
  tokens_per_request: [512, 1, 1000000],
  session_bonus_tokens: [1024, 0, 1000000],
  pressure_per_mille: [950, 1, 1000],
};
let settings = {};

function faults(config) {
  const names = Object.keys(KEYS);
  const found = Object.keys(config)
    .filter((key) => !names.includes(key))
    .map((key) => `${key} is no key of this policy; it has ${names.join(", ")}`);
  for (const [key, [fallback, least, most]] of Object.entries(KEYS)) {
    const value = config[key] ?? fallback;
    if (!Number.isInteger(value) || value < least || value > most) {
      found.push(`${key} is ${JSON.stringify(value)}; it is a whole number from ${least} to ${most}`);
    }
  }
  return found;
}

export const lifecycle = {
  init(config) {
    settings = Object.fromEntries(Object.entries(KEYS).map(([key, [fallback]]) => [key, fallback]));
    Object.assign(settings, JSON.parse(config));
    const wants = [
      kind.LANE_WAITING, kind.LANE_RUNNING, kind.KV_USED_PER_MILLE, kind.PREFIX_HIT_TOKENS, kind.HEALTHY, kind.ELIGIBLE,
    ];
    return { name: "affinity", version: "0.1.0", wants };
  },
  checkConfig(config) {
    const found = faults(JSON.parse(config));
    if (found.length > 0) throw found;
  },
};

// A number for a session on a lane that differs from lane to lane as if it were drawn (the finalizer of MurmurHash3).
function weight(session, lane) {
  let h = (session % 4294967296) ^ Math.floor(session / 4294967296) ^ Math.imul(lane + 1, 0x9e3779b9);
  h = Math.imul(h ^ (h >>> 16), 0x85ebca6b);
  h = Math.imul(h ^ (h >>> 13), 0xc2b2ae35);
  return (h ^ (h >>> 16)) >>> 0;
}

// The lane that a session keeps among those that are open.
function home(session, open) {
  return open.reduce((best, lane) => (weight(session, lane) > weight(session, best) ? lane : best), open[0]);
}

export const route = {
  decide(request, lanes, tenants) {
    const open = eligible(lanes);
    if (open.length === 0) {
      return { tag: "refuse", val: { status: 503, retryAfterMs: 1000, reason: 1, message: "no lane takes requests now" } };
    }
    const waiting = column(lanes, kind.LANE_WAITING);
    const running = column(lanes, kind.LANE_RUNNING);
    const used = column(lanes, kind.KV_USED_PER_MILLE);
    const hits = column(lanes, kind.PREFIX_HIT_TOKENS);
    const keeps = request.session === null || request.session === undefined ? -1 : home(Number(request.session), open);
    const score = (lane) => {
      const cached = hits.isPresent ? hits.get(lane, 0) : lane === keeps ? settings.session_bonus_tokens : 0;
      return cached - (waiting.get(lane, 0) + running.get(lane, 0)) * settings.tokens_per_request;
    };
    const isPressed = (lane) => used.get(lane, 0) >= settings.pressure_per_mille;
    const order = [...open].sort((a, b) => isPressed(a) - isPressed(b) || score(b) - score(a) || a - b);
    return { tag: "forward", val: { lanes: order, priority: null, reason: 0 } };
  },
};

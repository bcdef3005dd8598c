"""Load shedding: while lanes are full, bulk requests wait or are refused, so that the others keep their time to the first token.

A lane is full once its queue is longer than `full_waiting`, or its KV pool is used beyond `full_kv_per_mille`. While every eligible
lane is full, bulk is refused, standard is asked to wait, gold is served. A tenant beyond its share of the queue counts as bulk.
"""

import json

from componentize_py_types import Err
from millrace import column, eligible, kind
from wit_world import exports
from wit_world.exports import lifecycle, route
from wit_world.imports import metrics

BULK, STANDARD, GOLD = 0, 1, 2
REASON_SHED = 1

# Key, default, least and greatest value of the policy's table.
KEYS = {
    "full_waiting": (32, 1, 100_000),
    "full_kv_per_mille": (900, 1, 1_000),
    "max_waiting_per_weight": (64, 1, 100_000),
    "hold_ms": (50, 1, 1_000),
    "retry_after_ms": (2_000, 1, 3_600_000),
}
settings = {key: default for key, (default, _, _) in KEYS.items()}
counters = {}


def faults(config):
    """Everything that is wrong with a table, each a sentence that names the key."""
    found = [f"{key} is no key of this policy; it has {', '.join(KEYS)}" for key in config if key not in KEYS]
    for key, (default, least, greatest) in KEYS.items():
        value = config.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= greatest:
            found.append(f"{key} is {json.dumps(value)}; it is a whole number from {least} to {greatest}")
    return found


class Lifecycle(exports.Lifecycle):
    def init(self, config):
        settings.update(json.loads(config))
        for name in ("shed", "held"):
            counters[name] = metrics.counter(f"{name}_requests")
        wants = [
            kind.WEIGHT, kind.TENANT_WAITING, kind.TIER,
            kind.LANE_WAITING, kind.LANE_RUNNING, kind.KV_USED_PER_MILLE, kind.HEALTHY, kind.ELIGIBLE,
        ]
        return lifecycle.Info(name="load-shedding", version="0.1.0", wants=wants)

    def check_config(self, config):
        found = faults(json.loads(config))
        if found:
            raise Err(found)


class Route(exports.Route):
    def decide(self, request, lanes, tenants):
        rows = eligible(lanes)
        if not rows:
            return refuse("no lane takes requests now")
        waiting, running = column(lanes, kind.LANE_WAITING), column(lanes, kind.LANE_RUNNING)
        used = column(lanes, kind.KV_USED_PER_MILLE)

        def is_full(row):
            over = waiting.get(row, 0) >= settings["full_waiting"]
            return over or used.get(row, 0) >= settings["full_kv_per_mille"]

        tier = tier_of(request.tenant, tenants)
        if all(is_full(row) for row in rows) and tier != GOLD:
            if tier == BULK:
                metrics.add(counters["shed"], 1)
                return refuse("the service is under pressure; bulk requests are served later")
            metrics.add(counters["held"], 1)
            return route.Decision_Hold(settings["hold_ms"])
        rows.sort(key=lambda row: (is_full(row), waiting.get(row, 0) + running.get(row, 0), row))
        return route.Decision_Forward(route.Forward(lanes=rows, priority=None, reason=0))


def tier_of(tenant, tenants):
    """The tenant's tier, or bulk while more of its requests wait than its weight allows."""
    weight = max(column(tenants, kind.WEIGHT).get(tenant, 1), 1)
    over = column(tenants, kind.TENANT_WAITING).get(tenant, 0) > weight * settings["max_waiting_per_weight"]
    return BULK if over else column(tenants, kind.TIER).get(tenant, STANDARD)


def refuse(message):
    retry = settings["retry_after_ms"]
    return route.Decision_Refuse(route.Refusal(status=503, retry_after_ms=retry, reason=REASON_SHED, message=message))

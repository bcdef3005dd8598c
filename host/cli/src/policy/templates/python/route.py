"""The eligible lane with the least work."""

import json

from componentize_py_types import Err
from millrace import column, eligible, kind
from wit_world import exports
from wit_world.exports import lifecycle, route

# The policy's table in the deployment: config = { max_waiting = 100 }
DEFAULTS = {"max_waiting": 1000}
settings = dict(DEFAULTS)
{{learnt}}


def faults(config):
    """Everything that is wrong with a table, each a sentence that names the key."""
    found = [f"{key} is no key of this policy" for key in config if key not in DEFAULTS]
    bound = config.get("max_waiting", 1)
    if not isinstance(bound, int) or bound < 1:
        found.append(f"max_waiting is {bound}; no request would ever be taken, so use 1 or more")
    return found


class Lifecycle(exports.Lifecycle):
    def init(self, config):
        settings.update(json.loads(config))
        # The host copies these columns and no others.
        wants = [kind.LANE_WAITING, kind.LANE_RUNNING, kind.ELIGIBLE{{#feedback}}, kind.OUTCOME{{/feedback}}]
        return lifecycle.Info(name="{{name}}", version="0.1.0", wants=wants)

    def check_config(self, config):
        found = faults(json.loads(config))
        if found:
            raise Err(found)


class Route(exports.Route):
    def decide(self, request, lanes, tenants):
{{#unheard}}
        memory["learnt"] = memory["learnt"] + 1 & 0xFFFFFFFF
{{/unheard}}
        waiting, running = column(lanes, kind.LANE_WAITING), column(lanes, kind.LANE_RUNNING)
        rows = [row for row in eligible(lanes) if waiting.get(row, 0) < settings["max_waiting"]]
        if not rows:
            refusal = route.Refusal(status=503, retry_after_ms=1000, reason=1, message="every lane is full")
            return route.Decision_Refuse(refusal)
        rows.sort(key=lambda row: (waiting.get(row, 0) + running.get(row, 0), row))
        return route.Decision_Forward(route.Forward(lanes=rows, priority=None, reason={{#plain}}0{{/plain}}{{#beside}}memory["learnt"]{{/beside}}))

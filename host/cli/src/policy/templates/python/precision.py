"""Bulk tenants take the cheapest precision, all others the operator's first."""

import json

from componentize_py_types import Err
from millrace import ABSENT, column, kind
from wit_world import exports
from wit_world.exports import lifecycle, precision

STANDARD = 1
# The policy's table in the deployment: config = { cheap_tier = 0 }; 0 bulk, 1 standard, 2 gold.
DEFAULTS = {"cheap_tier": 0}
settings = dict(DEFAULTS)
{{learnt}}


def faults(config):
    """Everything that is wrong with a table, each a sentence that names the key."""
    found = [f"{key} is no key of this policy" for key in config if key not in DEFAULTS]
    tier = config.get("cheap_tier", 0)
    if tier not in (0, 1, 2):
        found.append(f"cheap_tier is {tier}; tiers are 0 bulk, 1 standard, 2 gold")
    return found


class Lifecycle(exports.Lifecycle):
    def init(self, config):
        settings.update(json.loads(config))
        # The host copies these columns and no others.
        return lifecycle.Info(name="{{name}}", version="0.1.0", wants=[kind.TIER, kind.RELATIVE_COST_PER_MILLE{{#feedback}}, kind.OUTCOME{{/feedback}}])

    def check_config(self, config):
        found = faults(json.loads(config))
        if found:
            raise Err(found)


class Precision(exports.Precision):
    def choose(self, asks, precisions, tenants):
{{#unheard}}
        memory["learnt"] = memory["learnt"] + 1 & 0xFFFFFFFF
{{/unheard}}
        tier, cost = column(tenants, kind.TIER), column(precisions, kind.RELATIVE_COST_PER_MILLE)
        cheapest = min(range(precisions.rows), key=lambda row: cost.get(row, ABSENT))

        def choice(ask):
            is_cheap = tier.get(ask.tenant, STANDARD) <= settings["cheap_tier"]
            return precision.Choice(precision=cheapest if is_cheap else 0, may_downgrade=is_cheap, reason={{#plain}}0{{/plain}}{{#beside}}memory["learnt"]{{/beside}})

        return [choice(ask) for ask in asks]

"""Oldest first: whoever waits longest runs next."""

import json

from componentize_py_types import Err
from millrace import column, kind
from wit_world import exports
from wit_world.exports import lifecycle, schedule
from wit_world.imports import types

HANDING_OFF = 2
RUNNING = 3
# The policy's table in the deployment: config = { young_us = 1000 }
DEFAULTS = {"young_us": 1}
settings = dict(DEFAULTS)
{{learnt}}


def faults(config):
    """Everything that is wrong with a table, each a sentence that names the key."""
    found = [f"{key} is no key of this policy" for key in config if key not in DEFAULTS]
    young = config.get("young_us", 1)
    if not isinstance(young, int) or young < 1:
        found.append(f"young_us is {young}; use 1 or more microseconds")
    return found


class Lifecycle(exports.Lifecycle):
    def init(self, config):
        settings.update(json.loads(config))
        # The host copies these columns and no others.
        return lifecycle.Info(name="{{name}}", version="0.1.0", wants=[kind.AGE_US, kind.STATE{{#feedback}}, kind.OUTCOME{{/feedback}}])

    def check_config(self, config):
        found = faults(json.loads(config))
        if found:
            raise Err(found)


class Schedule(exports.Schedule):
    def plan_step(self, budget, rows, tenants):
{{#unheard}}
        memory["learnt"] = memory["learnt"] + 1 & 0xFFFFFFFF
{{/unheard}}
        age, state = column(rows, kind.AGE_US), column(rows, kind.STATE)
        # Each engine sees all its sequences; those that belong to the other or are on their way cannot run.
        barred = {HANDING_OFF} if budget.stage == types.Stage.DECODE else {HANDING_OFF, RUNNING}
        run = [row for row in range(rows.rows) if state.get(row, 0) not in barred]
        run.sort(key=lambda row: (-(age.get(row, 0) // settings["young_us"]), row))
        run = run[: min(budget.sequences, budget.tokens)]
        # No token counts: the host's default. If pages run out, the youngest gives way first.
        return schedule.Plan(run=run, tokens=[], preempt=run[::-1], valid_steps=0, reason={{#plain}}0{{/plain}}{{#beside}}memory["learnt"]{{/beside}})



class Feedback(exports.Feedback):
    def observe(self, outcomes):
        """wit/feedback.wit says which columns `outcomes` has; those that are read belong in `wants`."""
        outcome = column(outcomes, kind.OUTCOME)
        failed = sum(outcome.get(row) == FAILED for row in range(outcomes.rows))
        memory["learnt"] = min(memory["learnt"] + failed, 0xFFFFFFFF)

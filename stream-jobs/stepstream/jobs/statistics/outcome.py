"""Tell how a labelled trajectory ended for success rates. Pure.

`clickhouse/outcome.py` is the same rule for rows of the store.
"""

from stepstream.topics.events import LabeledTrajectory


def outcome_of(label: LabeledTrajectory) -> bool | None:
    """Return True for a success, False for a failure, None without an outcome: it was lost, or is not judged yet.

    A time-out of the agent is a failure, unless late feedback is still waited for.
    """
    if label["success"] is None and label["end"] == "truncated" and not label["pending"]:
        return False
    return label["success"]

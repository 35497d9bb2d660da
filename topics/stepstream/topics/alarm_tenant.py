"""Tell whose alarm it is: the single rule for records of all releases. Pure."""

from collections.abc import Mapping

ENGINE_GAP = "engine_gap"
"""Kind of the alarm about a gap between engine and learner."""


def alarm_tenant(alarm: Mapping[str, object]) -> str:
    """Return the tenant that an alarm concerns; empty: all, since it is about a model.

    Earlier releases named no tenant in any alarm, which reads as the default one.
    """
    return "" if alarm["kind"] == ENGINE_GAP else str(alarm["tenant"])

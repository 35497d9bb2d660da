"""The metrics of a stack follow its events."""

from typing import get_args, get_type_hints

from prometheus_client import REGISTRY

from stepstream.embedded import stack_metrics
from stepstream.embedded.startup import Event


def value(name: str, process: str) -> float | None:
    return REGISTRY.get_sample_value(f"stepstream_stack_{name}", {"process": process})


def test_restarts_and_failures_are_counted_by_process() -> None:
    for state in get_args(get_type_hints(Event)["state"]):
        stack_metrics.observe(Event("console of the test", state))
    stack_metrics.observe(Event("gateway of the test", "ready"))
    assert value("process_up", "gateway of the test") == 1
    assert value("process_up", "console of the test") == 0
    assert value("restarts_total", "console of the test") == 1
    assert value("failures_total", "console of the test") == 1
    stack_metrics.observe(Event("console of the test", "restarted"))
    assert value("process_up", "console of the test") == 1

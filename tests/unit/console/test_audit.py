"""Test that each record of an action names its object, also of an action that fails."""

from typing import Any

import pytest

from stepstream.services.console.access.audit import run_action
from stepstream.services.console.api import ENDPOINTS
from stepstream.services.console.endpoints import Answer, BadRequest, Call, Done, Services, acts
from stepstream.services.console.users import User


class Log:
    """Notes what is published."""

    def __init__(self) -> None:
        self.records: list[dict[str, Any]] = []

    def publish(self, topic: str, key: str, record: Any) -> None:
        self.records.append(record)


@acts("/api/release", names=("tenant", "trajectory_ids", "step_index", "comment"))
def release(call: Call) -> Done:
    if call.body.get("fails"):
        raise BadRequest("not held")
    return Done("acme: t1, t2")


def run(**body: Any) -> tuple[Answer | None, list[tuple[str, str, str]]]:
    """Return the answer, None if the action fails, and state, target and reason of each record."""
    log = Log()
    services: Any = Services(None, None, log, None)  # type: ignore[arg-type]
    try:
        answer = run_action(release, Call(User("ada", "operator", ""), services, {}, body))
    except BadRequest:
        answer = None
    return answer, [(record["state"], record["target"], record["reason"]) for record in log.records]


@pytest.mark.parametrize("fails", [False, True])
def test_each_record_of_an_action_names_its_object(fails: bool) -> None:
    answer, records = run(tenant="acme", trajectory_ids=["t1", "t2"], step_index=0, fails=fails)
    assert (answer is None) == fails
    last = ("failed", "acme t1 t2 0", "BadRequest: not held") if fails else ("done", "acme: t1, t2", "")
    assert records == [("requested", "acme t1 t2 0", ""), last]


def test_a_malformed_request_names_what_it_can() -> None:
    _, records = run(tenant=None, trajectory_ids={"a": "b"}, step_index=["x", {}, ["y"], "z" * 2000])
    assert records[0] == ("requested", f"x {'z' * 998}", "")


def test_every_action_declares_the_fields_that_name_its_object() -> None:
    for endpoint in ENDPOINTS:
        assert (endpoint.act is not None) == bool(endpoint.names), endpoint.path

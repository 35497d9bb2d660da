"""Test the controller's cycle in process, right after its start."""

from typing import Any, cast

from stepstream.analytics.success import Attempts
from stepstream.config import Settings
from stepstream.services.control.app import Controller
from stepstream.services.control.history import DecisionLog
from stepstream.services.control.scope import Scope, Serving
from stepstream.topics.catalogue import APPROVALS, DECISION_ACTS, DECISIONS, TRAINING_CONTROL
from stepstream.topics.events import new_approval, new_control_policy, new_decision
from stepstream.topics.ids import now_us
from stepstream.versions.rollouts import ModelVersions


class Log:
    """A log with one decision to resample that a person has approved."""

    def __init__(self) -> None:
        self.decisions = DecisionLog()
        self.own: list[Any] = []
        at_us = now_us()
        decision = new_decision(
            event_id="d", occurred_at_us=at_us - 2, agent="a", model="m", action="resample", lever="task_mix",
            approvals=1, roles=["operator"], watched_until_us=at_us + 3_600_000_000,
        )  # fmt: skip
        answer = new_approval(
            event_id="x", occurred_at_us=at_us - 1, decision_id="d", verdict="approved", author="ada", role="operator"
        )
        self.decisions.add(DECISIONS, decision)
        self.decisions.add(APPROVALS, answer)

    def read(self) -> None:
        pass

    def policies(self) -> list[Any]:
        return [
            new_control_policy(
                event_id="p", occurred_at_us=0, tenant="default", name="p", version=1, document="", hash=""
            )
        ]

    def serving(self, _scope: Scope) -> Serving:
        return Serving(ModelVersions(), {})

    def add_own(self, records: list[Any]) -> None:
        self.own += records
        for record in records:
            self.decisions.add(record.topic, record.value)


class Queries:
    """A store whose trajectories train two families."""

    def scopes(self, _since_us: int) -> list[Scope]:
        return []

    def trained(self, _scope: Scope, _at_us: int) -> dict[str, Attempts]:
        return {"edge": Attempts(9, 5), "solved": Attempts(99, 99)}


class Producer:
    def send(self, *_: object) -> None:
        pass

    def flush(self) -> None:
        pass


def test_an_approved_resample_is_done_in_the_first_cycle_after_a_restart() -> None:
    log = Log()
    fakes = [cast(Any, one) for one in (log, Producer(), Queries(), None, None)]
    Controller(Settings(), *fakes).run_once()
    assert [one.topic for one in log.own] == [TRAINING_CONTROL, DECISION_ACTS], log.own
    control, act = log.own
    assert act.value["state"] == "done"
    weights = control.value["task_weights"]
    assert weights["edge"] > 0.9 > weights["solved"] > 0

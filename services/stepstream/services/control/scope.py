"""Name what one decision is about, and what serves it now. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import orjson

from stepstream.topics.alarm_tenant import alarm_tenant
from stepstream.topics.events import Alarm, Decision, Harness, TrainingControl
from stepstream.versions.rollouts import ModelVersions


class Scope(NamedTuple):
    """Agent and model of a tenant."""

    tenant: str
    agent: str
    model: str

    @property
    def key(self) -> str:
        """Key of its records on `decisions` and `decision-acts`."""
        return orjson.dumps(list(self)).decode()


@dataclass(frozen=True, slots=True)
class Serving:
    """Newest records of the compacted topics about a scope."""

    versions: ModelVersions
    harnesses: Mapping[str, Harness]
    """The agent's harness versions."""
    training: TrainingControl | None = None
    """None: nobody has decided, so the learner trains on equal weights."""
    alarms: tuple[Alarm, ...] = ()
    """Active alarms about the agent and model."""
    other_alarms: tuple[Alarm, ...] = ()
    """Active alarms about other agents of the tenant with the model: learning is one for all of them."""


def scope_of(decision: Decision) -> Scope:
    """Return the scope of a decision."""
    return Scope(decision["tenant"], decision["agent"], decision["model"])


def training_key(tenant: str, model: str) -> str:
    """Return the key of records on `training-control`."""
    return orjson.dumps([tenant, model]).decode()


def active_alarms(alarms: Iterable[Alarm], scope: Scope, *, of_others: bool = False) -> tuple[Alarm, ...]:
    """Return the raised alarms about a scope, by id: those of its tenant, and those about the model.

    `of_others`: instead those about other agents of its tenant with its model.
    """
    found = [
        one
        for one in alarms
        if one["state"] == "raised"
        and one["model"] == scope.model
        and (one["agent"] in ("", scope.agent)) != of_others
        and alarm_tenant(one) in ("", scope.tenant)
    ]
    return tuple(sorted(found, key=lambda one: one["alarm_id"]))

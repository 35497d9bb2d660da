"""Read what serves now, and return the records that undo a decision."""

from typing import Any, cast

import orjson

from stepstream.config import Settings
from stepstream.services.control.decision_log import read_table
from stepstream.services.control.undo import UndoRefused, undo_harness, undo_kind, undo_rollout, undo_training
from stepstream.topics.catalogue import DECISION_ACTS, HARNESSES, ROLLOUTS, TRAINING_CONTROL
from stepstream.topics.codec import RegistryUnavailable
from stepstream.topics.events import Decision, Harness, TrainingControl, new_decision_act
from stepstream.topics.ids import new_event_id, now_us
from stepstream.versions.follower import VersionFollower
from stepstream.versions.harnesses import HarnessRefused, record_key, versions_of
from stepstream.versions.rollout_actions import RolloutRefused

REFUSALS = (UndoRefused, HarnessRefused, RolloutRefused)
_DEADLINE_S = 30.0
_ACTS = {"refused": "refused", "retired": "taken back", "canary": "the canary again", "stable": "stable"}

Record = tuple[str, str, Any]
"""Topic, key and record."""


def undo_records(settings: Settings, decision: Decision, author: str, reason: str) -> list[Record]:
    """Return the records that take the decision back, then the act that says so; the caller writes them in order.

    Raises:
        UndoRefused, HarnessRefused, RolloutRefused: it cannot be undone; the message has the reason.
        RegistryUnavailable: the log was not read within 30 seconds.
    """
    why = f"undo of decision {decision['event_id']}" + (f": {reason}" if reason else "")
    match undo_kind(decision):
        case "rollout":
            made, text = _rollout(settings, decision, author, why)
        case "harness":
            made, text = _harness(settings, decision, author, why)
        case "training":
            made, text = _training(settings, decision, author, why)
        case _:
            hint = f"; by hand: {decision['undo']}" if decision["undo"] else ""
            raise UndoRefused(f"a decision to {decision['action']} is not undone here{hint}")
    act = new_decision_act(
        event_id=new_event_id(),
        occurred_at_us=now_us(),
        tenant=decision["tenant"],
        agent=decision["agent"],
        model=decision["model"],
        decision_id=decision["event_id"],
        state="undone",
        description=text,
        reason=f"{author}: {reason}" if reason else author,
    )
    key = orjson.dumps([decision["tenant"], decision["agent"], decision["model"]]).decode()
    return [*made, (DECISION_ACTS, key, act)]


def _rollout(settings: Settings, decision: Decision, author: str, why: str) -> tuple[list[Record], str]:
    model = decision["model"]
    with VersionFollower(settings) as versions:
        if not versions.wait_current(_DEADLINE_S):
            raise RegistryUnavailable(f"the versions were not read within {_DEADLINE_S:g} s: see `stepstream doctor`")
        state = versions.snapshot(model)
    chosen = undo_rollout(decision, state)
    event = chosen.event(model, event_id=new_event_id(), occurred_at_us=now_us(), reason=why, author=author)
    state.apply_rollout(event)
    return [(ROLLOUTS, model, event)], f"{model}: stable {state.served.stable}, no canary"


def _harness(settings: Settings, decision: Decision, author: str, why: str) -> tuple[list[Record], str]:
    tenant, agent = decision["tenant"], decision["agent"]
    versions = versions_of(read_table(settings, HARNESSES).values(), tenant, agent)
    identity = {"occurred_at_us": now_us(), "reason": why, "author": author}
    made = [cast(Harness, {**one, **identity, "event_id": new_event_id()}) for one in undo_harness(decision, versions)]
    text = ", ".join(f"{one['version']} is {_ACTS[one['state']]}" for one in made)
    return [(HARNESSES, record_key(tenant, agent, one["version"]), one) for one in made], f"{agent}: harness {text}"


def _training(settings: Settings, decision: Decision, author: str, why: str) -> tuple[list[Record], str]:
    key = orjson.dumps([decision["tenant"], decision["model"]]).decode()
    now = read_table(settings, TRAINING_CONTROL).get(key)
    if now is None:
        raise UndoRefused("no record controls the training of the model")
    identity = {"event_id": new_event_id(), "occurred_at_us": now_us(), "decision_id": ""}
    record = cast(TrainingControl, {**undo_training(decision, now), **identity, "reason": f"{author}: {why}"})
    state = "paused" if record["paused"] else "not paused"
    excluded = ", ".join(record["excluded_reward_specs"]) or "none"
    text = f"{decision['model']}: learning is {state}, task weights {record['task_weights'] or 'equal'}"
    return [(TRAINING_CONTROL, key, record)], f"{text}, excluded reward specifications {excluded}"

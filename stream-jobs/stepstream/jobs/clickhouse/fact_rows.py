"""Map events and labels to the fact tables of `0016_facts.sql`. Pure.

Null is -1 for a version or an index, and an empty text otherwise. An older label, which has no `opened_at_us`, opens at
its `started_at_us`.
"""

from operator import itemgetter
from typing import Any

from stepstream.jobs.clickhouse.columns import (
    Column,
    Record,
    Table,
    decided_tenant,
    each,
    governed,
    json,
    key_of,
    millis,
    number,
    size,
    source_event_id,
    source_key,
    table,
    text,
)

_occurred_at = itemgetter("occurred_at_us")


def _policy_version(pick: Any) -> Column:
    """Read the lowest or highest version of the policy spans, by `min` or `max`; -1 without a span."""
    return lambda record: pick((span["version"] for span in record["policy_spans"]), default=-1)


_EVENT = {"source_key": source_key, "governed_by": governed("policy_version", 0)}
_WHO: dict[str, Column] = {"user": text("user"), "group_id": text("group_id")}
_WHO_FIELDS = "agent model environment harness_version track split fidelity consent task_id"

STEPS = table(
    "steps",
    "tenant trajectory_id step_index finish_reason duration_ms first_token_ms cost_usd " + _WHO_FIELDS,
    occurred_at=millis("occurred_at_us"),
    version_min=_policy_version(min),
    version_max=_policy_version(max),
    shared_tokens=itemgetter("prompt_shared_tokens"),
    prompt_tokens=size("prompt_token_ids"),
    response_tokens=size("response_token_ids"),
    logprob_sum=lambda record: sum(record["response_logprobs"]),
    tools=lambda record: [call["name"] for call in record["response"]["tool_calls"]],
    error=text("error"),
    trainable=governed("trainable", False),
    flags=governed("flags", []),
    **_EVENT,
    **_WHO,
)
STEP_CONTENTS = table(
    "step_contents",
    "tenant trajectory_id step_index event_id producer end usage_prompt_tokens usage_response_tokens",
    occurred_at=millis("occurred_at_us"),
    source_event_id=source_event_id,
    parent_trajectory_id=text("parent_trajectory_id"),
    parent_step_index=number("parent_step_index"),
    shared_step=number("prompt_shared_step"),
    shared_messages=itemgetter("prompt_shared_messages"),
    messages=json("messages"),
    response=json("response"),
    sampling=json("sampling"),
    redactions=governed("redactions", {}),
    **_EVENT,
)
FEEDBACK = table(
    "feedback",
    "tenant trajectory_id event_id producer consent name value comment demonstration source end",
    occurred_at=_occurred_at,
    source_event_id=source_event_id,
    step_index=number("step_index"),
    tool_call_id=text("tool_call_id"),
    user=text("user"),
    category=text("category"),
    retracts=text("retracts"),
    last_step_index=number("last_step_index"),
    redactions=governed("redactions", {}),
    flags=governed("flags", []),
    **_EVENT,
)
CLOSURES = table(
    "closures",
    "trajectory_id event_id reason last_step_index job components",
    tenant=decided_tenant,
    occurred_at=_occurred_at,
)
CURATION = table("curation", "trajectory_id event_id action reason by", tenant=decided_tenant, occurred_at=_occurred_at)
AUDIT = table(
    "governance_audit",
    "tenant trajectory_id event_id source_topic source_event_id policy_version action found job",
    occurred_at=_occurred_at,
)
TRAINING_DECISIONS = table(
    "training_decisions",
    "tenant trajectory_id event_id revision model root outcome reason learner_version staleness update "
    "checkpoint_version trained_revision partition offset job",
    occurred_at=_occurred_at,
    group_id=text("group_id"),
)


def _opened_at(label: Record) -> int:
    opened_us = label.get("opened_at_us")
    return int(label["started_at_us"] if opened_us is None else opened_us) // 1000


def _of_steps(items: str, value: Column) -> Column:
    """Read `value` of every element of `items` of the steps of a label, in order."""
    return lambda label: [value(item) for step in label["steps"] for item in step[items]]


def _step_of_each(items: str) -> Column:
    """Read the index of the step of every element of `items`."""
    return lambda label: [step["step_index"] for step in label["steps"] for _ in step[items]]


TRAJECTORIES = table(
    "trajectories",
    "tenant trajectory_id revision end closed_by complete success reward reward_spec reward_spec_version pending flags "
    "trainable prompt_tokens response_tokens cost_usd labelled_by " + _WHO_FIELDS,
    label_id=itemgetter("event_id"),
    opened_at=_opened_at,
    started_at=millis("started_at_us"),
    ended_at=millis("ended_at_us"),
    labelled_at=millis("occurred_at_us"),
    version_min=number("version_min"),
    version_max=number("version_max"),
    parent_trajectory_id=text("parent_trajectory_id"),
    parent_step_index=number("parent_step_index"),
    steps=size("steps"),
    sequences=size("sequences"),
    errors=lambda label: sum(step["error"] is not None for step in label["steps"]),
    duration_ms=lambda label: sum(step["duration_ms"] or 0.0 for step in label["steps"]),
    **_WHO,
    step__index=each("steps", "step_index"),
    step__event_key=lambda label: [key_of(step["event_id"], 4) for step in label["steps"]],
    step__reward=each("steps", "reward"),
    step__return_to_go=each("steps", "return_to_go"),
    step__tokens=each("steps", "response_tokens"),
    call__step=_step_of_each("tool_calls"),
    call__tool=_of_steps("tool_calls", itemgetter("name")),
    call__error=_of_steps("tool_calls", text("error")),
    call__ms=_of_steps("tool_calls", number("duration_ms")),
    component__step=_step_of_each("components"),
    component__name=_of_steps("components", itemgetter("name")),
    component__kind=_of_steps("components", itemgetter("kind")),
    component__source=_of_steps("components", itemgetter("source")),
    component__value=_of_steps("components", itemgetter("value")),
    component__raw=_of_steps("components", itemgetter("raw_value")),
    component__weight=_of_steps("components", itemgetter("weight")),
    component__final=_of_steps("components", itemgetter("final")),
)


def partition_time_us(written: Table, record: Record) -> int | None:
    """Return the time by which a row is partitioned, in microseconds; None: the table has no partitions by time."""
    if written is TRAJECTORIES:
        return _opened_at(record) * 1000
    return int(record["occurred_at_us"]) if written in _BY_TIME else None


_BY_TIME = frozenset({STEPS, STEP_CONTENTS, FEEDBACK, CLOSURES, CURATION, AUDIT, TRAINING_DECISIONS})

"""Read the steps of one trajectory from the tables, with their rewards and the feedback about them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from stepstream.services.console.endpoints import TENANT

Row = dict[str, Any]
Query = Callable[..., list[Row]]
"""Returns the rows of a query; its keywords are the query's parameters."""

STEPS_PER_PAGE = 50
LONGEST_TEXT = 20_000
"""Characters of a text in a page of steps. `whole_step` returns texts whole."""

_IT = f"{TENANT} AND tenant = {{of:String}} AND trajectory_id = {{id:String}}"
_FIRST, _LAST = "fromUnixTimestamp64Milli({first:Int64})", "fromUnixTimestamp64Milli({last:Int64})"
_TIMES = f"""
SELECT toUnixTimestamp64Milli(min(first)) AS first_ms, toUnixTimestamp64Milli(max(last)) AS last_ms
FROM trajectory_times
WHERE trajectory_key = sipHash64({{id:String}}) AND {TENANT} AND tenant = {{of:String}}
HAVING count() > 0
"""
_STEPS = f"""
SELECT step_index, source_key, agent, model, harness_version, fidelity, consent, trainable, flags, shared_tokens,
    prompt_tokens, response_tokens, logprob_sum, version_min, version_max, tools, finish_reason, error, duration_ms,
    first_token_ms, toFloat64(cost_usd) AS cost, toUnixTimestamp64Milli(occurred_at) AS occurred_ms
FROM steps FINAL
WHERE {_IT} AND occurred_at >= {_FIRST} AND occurred_at <= {_LAST} AND step_index > {{after:Int32}}
ORDER BY step_index, occurred_at LIMIT {{rows:UInt32}}
"""
_CONTENTS = f"""
SELECT step_index, source_key, event_id, messages, response, sampling, redactions, shared_messages, shared_step, end,
    parent_trajectory_id, parent_step_index
FROM step_contents FINAL
WHERE {_IT} AND occurred_at >= {_FIRST} AND occurred_at <= {_LAST} AND step_index IN {{indices:Array(UInt32)}}
"""
_LABEL = f"""
SELECT revision, label_id, agent, model, environment, harness_version, track, split, task_id, group_id, fidelity,
    consent, version_min, version_max, parent_trajectory_id, parent_step_index, end, closed_by, complete, success,
    reward, reward_spec, reward_spec_version, pending, flags, trainable, steps, errors, prompt_tokens, response_tokens,
    toFloat64(cost_usd) AS cost, toUnixTimestamp64Milli(opened_at) AS opened_ms,
    toUnixTimestamp64Milli(ended_at) AS ended_ms, toUnixTimestamp64Milli(labelled_at) AS labelled_ms,
    arrayZip(step.index, step.reward, step.return_to_go) AS step_rewards,
    arrayZip(call.step, call.tool, call.error, call.ms) AS calls,
    arrayZip(component.step, component.name, component.kind, component.source, component.value, component.raw,
        component.weight, component.final) AS components
FROM trajectories FINAL WHERE {_IT} AND opened_at >= {_FIRST} AND opened_at <= {_LAST} LIMIT 1
"""
_FEEDBACK = f"""
SELECT event_id, source_event_id, step_index, tool_call_id, name, value, category, comment, demonstration, source,
    producer, retracts, redactions, toUnixTimestamp64Milli(toDateTime64(occurred_at, 3, 'UTC')) AS occurred_ms
FROM feedback FINAL
WHERE {_IT} AND occurred_at >= {_FIRST} - INTERVAL 1 DAY
ORDER BY occurred_at, event_id LIMIT 500
"""
_USER = f"""
SELECT user, consent FROM steps FINAL
WHERE {_IT} AND occurred_at >= {_FIRST} AND occurred_at <= {_LAST}
"""
_COMPONENT = ("name", "kind", "source", "value", "raw", "weight", "final")


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One trajectory of the tables."""

    tenant: str
    trajectory_id: str
    first_ms: int
    """Time of its first step or of its opening, in milliseconds since the Unix epoch."""
    last_ms: int

    @property
    def parameters(self) -> dict[str, Any]:
        """Parameters of every query about it."""
        return {"of": self.tenant, "id": self.trajectory_id, "first": self.first_ms, "last": self.last_ms}


def find(query: Query, tenant: str, trajectory_id: str) -> Trajectory | None:
    """Return a trajectory by its identity; None: the tables have neither a step nor a label of it."""
    rows = query(_TIMES, of=tenant, id=trajectory_id)
    return Trajectory(tenant, trajectory_id, rows[0]["first_ms"], rows[0]["last_ms"]) if rows else None


def label_of(query: Query, trajectory: Trajectory) -> Row | None:
    """Return the newest label, with its step rewards, tool calls and components; None: not labelled."""
    rows = query(_LABEL, **trajectory.parameters)
    return rows[0] if rows else None


def persons_of(query: Query, trajectory: Trajectory) -> list[tuple[str, str]]:
    """Return user (empty: nobody is named) and consent of each step."""
    return [(row["user"], row["consent"]) for row in query(_USER, **trajectory.parameters)]


def steps_of(
    query: Query, trajectory: Trajectory, label: Row | None, after: int = -1, rows: int = STEPS_PER_PAGE
) -> tuple[list[Row], bool]:
    """Return a page of steps, each with its rewards, and True if there are more.

    Long texts are cut: see `LONGEST_TEXT`.

    Args:
        query: queries the store.
        trajectory: whose steps.
        label: its newest label.
        after: index of the last step of the page before; -1: from the first.
        rows: most steps of the page.
    """
    steps = query(_STEPS, **trajectory.parameters, after=after, rows=rows + 1)
    more, steps = len(steps) > rows, steps[:rows]
    contents = _contents(query, trajectory, [step["step_index"] for step in steps])
    rewards = {index: (reward, rest) for index, reward, rest in (label or {}).get("step_rewards", ())}
    components: dict[int, list[Row]] = {}
    for index, *values in (label or {}).get("components", ()):
        components.setdefault(index, []).append(dict(zip(_COMPONENT, values, strict=True)))
    return [
        {
            **_joined(step, contents, LONGEST_TEXT),
            "reward": rewards.get(step["step_index"], (None, None))[0],
            "return_to_go": rewards.get(step["step_index"], (None, None))[1],
            "components": components.get(step["step_index"], []),
        }
        for step in steps
    ], more


def whole_step(query: Query, trajectory: Trajectory, index: int) -> Row | None:
    """Return one step with its whole texts; None: the tables lack it."""
    rows = query(_STEPS, **trajectory.parameters, after=index - 1, rows=1)
    if not rows or rows[0]["step_index"] != index:
        return None
    return _joined(rows[0], _contents(query, trajectory, [index]), None)


def feedback_of(query: Query, trajectory: Trajectory) -> list[Row]:
    """Return the feedback about a trajectory and its steps, by time; `retracted`: a later event retracts it."""
    rows = query(_FEEDBACK, **trajectory.parameters)
    retracted = {row["retracts"] for row in rows if row["retracts"]}
    return [
        {**row, "retracted": bool({row["event_id"], row["source_event_id"]} & retracted)}
        for row in rows
        if not row["retracts"]
    ]


def _contents(query: Query, trajectory: Trajectory, indices: list[int]) -> dict[tuple[int, int], Row]:
    rows = query(_CONTENTS, **trajectory.parameters, indices=indices) if indices else []
    return {(row["step_index"], row["source_key"]): row for row in rows}


def _joined(step: Row, contents: Mapping[tuple[int, int], Row], longest: int | None) -> Row:
    """Return a step with its texts; `content_missing`: its texts are no longer, or not yet, in the tables."""
    found = contents.get((step["step_index"], step["source_key"]))
    joined = with_messages(step | (found or _NO_CONTENT), longest)
    return _without(joined, "source_key") | {"content_missing": found is None}


_NO_CONTENT: Row = {
    "event_id": "", "messages": "[]", "response": '{"role": "assistant", "content": ""}', "sampling": "{}",
    "redactions": {}, "shared_messages": 0, "shared_step": -1, "end": "open",
}  # fmt: skip


def with_messages(row: Mapping[str, Any], longest: int | None) -> Row:
    """Return a step's row with `messages` and `response` decoded; texts are cut to `longest` characters (None: whole).

    A cut text has its whole length in `lengths`, by field.
    """
    messages = [_cut(message, longest) for message in orjson.loads(row["messages"])]
    response = _cut(orjson.loads(row["response"]), longest)
    return {**row, "messages": messages, "response": response, "sampling": orjson.loads(row["sampling"])}


def _cut(message: Row, longest: int | None) -> Row:
    cut, lengths = _cut_fields(message, ("content", "reasoning"), longest)
    calls: Sequence[Row] = message.get("tool_calls") or []
    cut["tool_calls"] = []
    for call in calls:
        one, cuts = _cut_fields(call, ("arguments", "result"), longest)
        cut["tool_calls"].append({**one, "lengths": cuts} if cuts else one)
    return {**cut, "lengths": lengths} if lengths else cut


def _cut_fields(value: Row, fields: Sequence[str], longest: int | None) -> tuple[Row, dict[str, int]]:
    lengths = {
        name: len(value[name]) for name in fields if longest is not None and len(value.get(name) or "") > longest
    }
    return {**value, **{name: value[name][:longest] for name in lengths}}, lengths


def _without(row: Row, name: str) -> Row:
    return {key: value for key, value in row.items() if key != name}

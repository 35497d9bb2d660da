"""Governed trajectories out of ClickHouse, a page at a time, for what may be done with them.

ClickHouse keeps what was said and what was counted, no token ids: `whole` gives a step from the log where the export
wants those too. The steps are those that the newest label was made of, with its rewards.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import orjson
from clickhouse_connect.driver.client import Client

from stepstream.datasets.episode import Episode, as_told, feedback_as_told
from stepstream.topics.events import Feedback, Step, new_feedback, new_governance, new_message, new_sampling, new_step

Purpose = Literal["train", "analyse"]
Whole = Callable[[Sequence[str]], dict[str, Step]]
"""Governed steps with their tokens, of those event ids, where the log has them."""

PAGE = 500
_ALLOWED: dict[Purpose, tuple[str, ...]] = {"train": ("train",), "analyse": ("train", "analyse")}
_FIT: dict[Purpose, str] = {
    "train": "split = 'train' AND NOT arrayExists(flag -> startsWith(flag, 'held:'), flags)",
    "analyse": "1",
}
_SAME = [
    "trajectory_id",
    "step_index",
    "producer",
    "tenant",
    "consent",
    "user",
    "parent_trajectory_id",
    "parent_step_index",
    "task_id",
    "group_id",
    "agent",
    "environment",
    "harness_version",
    "track",
    "split",
    "model",
    "finish_reason",
    "error",
    "duration_ms",
    "first_token_ms",
    "cost_usd",
    "prompt_shared_step",
    "usage_prompt_tokens",
    "usage_response_tokens",
]
"""Columns of `steps` that are fields of a step."""
_STEPS = f"""
SELECT s.event_id AS event_id, {", ".join(f"s.{name} AS {name}" for name in _SAME)},
    source_event_id, toUnixTimestamp64Micro(s.occurred_at) AS occurred_at_us, shared_messages, s.fidelity AS fidelity,
    messages, response, temperature, top_p, max_tokens, seed, trajectory_end, l.reward AS reward
FROM (SELECT * FROM steps FINAL WHERE trajectory_id IN {{ids:Array(String)}}) AS s
INNER JOIN
(
    SELECT event_id, reward FROM trajectory_steps FINAL WHERE trajectory_id IN {{ids:Array(String)}}
) AS l ON l.event_id = s.event_id
WHERE s.consent IN {{consents:Array(String)}}
ORDER BY trajectory_id, step_index
"""
_SAID = [
    "trajectory_id",
    "step_index",
    "tool_call_id",
    "producer",
    "tenant",
    "consent",
    "user",
    "name",
    "value",
    "category",
    "comment",
    "demonstration",
    "source",
    "retracts",
    "last_step_index",
]
"""Columns of `feedback` that are fields of feedback."""
_FEEDBACK = f"""
SELECT event_id, {", ".join(_SAID)}, source_event_id, toUnixTimestamp64Micro(occurred_at) AS occurred_at_us,
    trajectory_end
FROM feedback FINAL
WHERE trajectory_id IN {{ids:Array(String)}} AND consent IN {{consents:Array(String)}}
ORDER BY trajectory_id, policy_version, occurred_at_us, event_id
"""
_NOT_NOW = """
SELECT DISTINCT trajectory_id
FROM
(
    SELECT trajectory_id, toString(tenant) AS tenant, ifNull(toString(user), '') AS user, toString(agent) AS agent
    FROM steps WHERE trajectory_id IN {ids:Array(String)}
    UNION ALL
    SELECT trajectory_id, toString(tenant), ifNull(toString(user), ''), '' FROM feedback
    WHERE trajectory_id IN {ids:Array(String)}
)
ARRAY JOIN [(tenant, '', ''), (tenant, user, ''), (tenant, '', agent), (tenant, user, agent)] AS whose
WHERE whose IN
(
    SELECT (toString(tenant), ifNull(toString(user), ''), ifNull(toString(agent), ''))
    FROM consents FINAL WHERE consent NOT IN {consents:Array(String)}
)
"""
"""Trajectories of which somebody has said since that they may not be used so: a tenant, a person or an agent, or a
person with an agent. `label` revises what it keeps; what is older has the consent of its time."""


class Unbounded(ValueError):
    """A condition that reaches beyond its place in the query."""


def matching(client: Client, where: str, purpose: Purpose) -> Iterator[list[str]]:
    """Ids of the trajectories that fulfil a condition and may be used so now, in pages, in order.

    Args:
        client: of a database with the tables; its answers are read at once.
        where: a condition on the columns of `trajectories`; empty: all.
        purpose: what they are wanted for.

    Raises:
        ClickHouseError: the condition cannot be evaluated.
        Unbounded: it does not keep to its brackets.
    """
    query = (
        "SELECT trajectory_id FROM trajectories FINAL WHERE trajectory_id > {after:String} "
        f"AND (\n{where.strip() or '1'}\n) ORDER BY trajectory_id LIMIT {{page:UInt32}}"
    )
    # Asked on its own: no bracket that the condition closes gets around it.
    allowed = (
        "SELECT trajectory_id FROM trajectories FINAL WHERE trajectory_id IN {ids:Array(String)} "
        f"AND consent IN {{consents:Array(String)}} AND {_FIT[purpose]}"
    )
    after, parameters = "", {"consents": list(_ALLOWED[purpose]), "page": PAGE}
    while ids := _column(client, query, parameters | {"after": after}):
        if ids[0] <= after:
            raise Unbounded("the condition closes a bracket that it did not open")
        those = parameters | {"ids": ids}
        found = set(_column(client, allowed, those))
        if found:
            found -= set(_column(client, _NOT_NOW, those))
        if found:
            yield [name for name in ids if name in found]
        after = ids[-1]


def _column(client: Client, query: str, parameters: dict[str, Any]) -> list[str]:
    return [row[0] for row in client.query(query, parameters=parameters).result_rows]


def episodes(client: Client, ids: Sequence[str], purpose: Purpose, whole: Whole | None = None) -> Iterator[Episode]:
    """The episodes of a page, as their producers could have told them."""
    parameters = {"ids": list(ids), "consents": list(_ALLOWED[purpose])}
    rows = list(client.query(_STEPS, parameters=parameters).named_results())
    known = whole([row["event_id"] for row in rows]) if whole is not None else {}
    steps: dict[str, list[Step]] = {}
    rewards: dict[str, dict[int, float]] = {}
    for row in rows:
        step = known.get(row["event_id"]) or _step(row)
        steps.setdefault(row["trajectory_id"], []).append(as_told(step))
        rewards.setdefault(row["trajectory_id"], {})[row["step_index"]] = row["reward"]
    feedback: dict[str, dict[str, Feedback]] = {}
    for row in client.query(_FEEDBACK, parameters=parameters).named_results():
        told = feedback_as_told(_feedback(row))
        feedback.setdefault(row["trajectory_id"], {})[told["event_id"]] = told  # of two policies', the newer
    for name, found in steps.items():
        yield Episode(found, list(feedback.get(name, {}).values()), rewards[name])


def _step(row: dict[str, Any]) -> Step:
    fields = {name: row[name] for name in _SAME}
    return new_step(
        **fields,
        event_id=row["event_id"],
        occurred_at_us=row["occurred_at_us"],
        fidelity="text" if row["fidelity"] == "token" else row["fidelity"],
        prompt_shared_messages=row["shared_messages"],
        messages=[_message(message) for message in orjson.loads(row["messages"])],
        response=_message(orjson.loads(row["response"])),
        sampling=new_sampling(
            temperature=row["temperature"], top_p=row["top_p"], max_tokens=row["max_tokens"], seed=row["seed"]
        ),
        end=row["trajectory_end"],
        governed=new_governance(source_event_id=row["source_event_id"], job=""),
    )


def _feedback(row: dict[str, Any]) -> Feedback:
    return new_feedback(
        **{name: row[name] for name in _SAID},
        event_id=row["event_id"],
        occurred_at_us=row["occurred_at_us"],
        end=row["trajectory_end"],
        governed=new_governance(source_event_id=row["source_event_id"], job=""),
    )


def _message(kept: dict[str, Any]) -> Any:
    """A message of a row, which an older version of this package may have written."""
    return new_message(**kept)

"""Export governed trajectories from ClickHouse, page by page, for a purpose that their consent allows.

A page has the trajectories of one tenant.

ClickHouse has text and counts but no token ids: a `StepReader` reads steps with tokens from the log. The steps are
those of the newest label, with its rewards.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, Literal, NamedTuple

import orjson
from clickhouse_connect.driver.client import Client

from stepstream.datasets.episode import Episode, ungoverned_feedback, ungoverned_step
from stepstream.topics.events import Feedback, Step, new_feedback, new_governance, new_message, new_sampling, new_step

Purpose = Literal["train", "analyse"]
StepReader = Callable[[str, Sequence[str]], dict[str, Step]]
"""Returns a tenant's governed steps with these event ids that the log has, with tokens."""

PAGE = 500
_ALLOWED: dict[Purpose, tuple[str, ...]] = {"train": ("train",), "analyse": ("train", "analyse")}
_CONDITIONS: dict[Purpose, str] = {
    "train": "split = 'train' AND NOT arrayExists(flag -> startsWith(flag, 'held:'), flags)",
    "analyse": "1",
}
_STEP_COLUMNS = [
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
_IDS = "tenant = {tenant:String} AND trajectory_id IN {ids:Array(String)}"
_STEPS = f"""
SELECT s.event_id AS event_id, {", ".join(f"s.{name} AS {name}" for name in _STEP_COLUMNS)},
    source_event_id, toUnixTimestamp64Micro(s.occurred_at) AS occurred_at_us, shared_messages, s.fidelity AS fidelity,
    messages, response, temperature, top_p, max_tokens, seed, trajectory_end, l.reward AS reward
FROM (SELECT * FROM steps FINAL WHERE {_IDS}) AS s
INNER JOIN
(
    SELECT trajectory_id, event_id, reward FROM trajectory_steps FINAL WHERE {_IDS}
) AS l ON l.trajectory_id = s.trajectory_id AND l.event_id = s.event_id
WHERE s.consent IN {{consents:Array(String)}}
ORDER BY trajectory_id, step_index
"""
_FEEDBACK_COLUMNS = [
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
SELECT event_id, {", ".join(_FEEDBACK_COLUMNS)}, source_event_id, toUnixTimestamp64Micro(occurred_at) AS occurred_at_us,
    trajectory_end
FROM feedback FINAL
WHERE {_IDS} AND consent IN {{consents:Array(String)}}
ORDER BY trajectory_id, policy_version, occurred_at_us, event_id
"""
_WITHDRAWN = f"""
SELECT DISTINCT trajectory_id
FROM
(
    SELECT trajectory_id, toString(tenant) AS tenant, ifNull(toString(user), '') AS user, toString(agent) AS agent
    FROM steps WHERE {_IDS}
    UNION ALL
    SELECT trajectory_id, toString(tenant), ifNull(toString(user), ''), '' FROM feedback
    WHERE {_IDS}
)
ARRAY JOIN [(tenant, '', ''), (tenant, user, ''), (tenant, '', agent), (tenant, user, agent)] AS whose
WHERE whose IN
(
    SELECT (toString(tenant), ifNull(toString(user), ''), ifNull(toString(agent), ''))
    FROM consents FINAL WHERE consent NOT IN {{consents:Array(String)}}
)
"""
"""Trajectories whose consent was withdrawn since, by a tenant, a user, an agent, or a user with an agent. `label`
revises only the trajectories that it saves; older ones keep the consent of their time.
"""


class Page(NamedTuple):
    """Trajectories of one tenant."""

    tenant: str
    ids: list[str]


class UnbalancedCondition(ValueError):
    """Condition that closes a bracket of the query around it."""


def matching_pages(client: Client, where: str, purpose: Purpose) -> Iterator[Page]:
    """Yield the trajectories that fulfil a condition and that the purpose allows now, in order of tenant and id.

    Args:
        client: client of a database with the tables.
        where: condition on the columns of `trajectories`; empty: all.
        purpose: use of the export.

    Raises:
        ClickHouseError: the condition cannot be evaluated.
        UnbalancedCondition: its brackets do not match.
    """
    query = (
        "SELECT toString(tenant), trajectory_id FROM trajectories FINAL "
        "WHERE (toString(tenant), trajectory_id) > ({after_tenant:String}, {after:String}) "
        f"AND (\n{where.strip() or '1'}\n) ORDER BY toString(tenant), trajectory_id LIMIT {{page:UInt32}}"
    )
    # A query of its own: brackets in the condition cannot bypass it.
    allowed = (
        f"SELECT trajectory_id FROM trajectories FINAL WHERE {_IDS} "
        f"AND consent IN {{consents:Array(String)}} AND {_CONDITIONS[purpose]}"
    )
    after: tuple[str, str] = "", ""
    parameters = {"consents": list(_ALLOWED[purpose]), "page": PAGE}
    while found := _rows(client, query, parameters | {"after_tenant": after[0], "after": after[1]}):
        if found[0] <= after:
            raise UnbalancedCondition("the condition closes a bracket that it did not open")
        for tenant, rows in groupby(found, itemgetter(0)):
            page = Page(tenant, [trajectory_id for _, trajectory_id in rows])
            of_page = parameters | page._asdict()
            usable = {name for (name,) in _rows(client, allowed, of_page)}
            if usable:
                usable -= {name for (name,) in _rows(client, _WITHDRAWN, of_page)}
            if usable:
                yield Page(tenant, [name for name in page.ids if name in usable])
        after = found[-1]


def _rows(client: Client, query: str, parameters: dict[str, Any]) -> list[Any]:
    return [tuple(row) for row in client.query(query, parameters=parameters).result_rows]


def episodes(client: Client, page: Page, purpose: Purpose, read_steps: StepReader | None = None) -> Iterator[Episode]:
    """Yield the episodes of a page, as their producers could have sent them."""
    parameters = {**page._asdict(), "consents": list(_ALLOWED[purpose])}
    rows = list(client.query(_STEPS, parameters=parameters).named_results())
    known = read_steps(page.tenant, [row["event_id"] for row in rows]) if read_steps is not None else {}
    steps: dict[str, list[Step]] = {}
    rewards: dict[str, dict[int, float]] = {}
    for row in rows:
        step = known.get(row["event_id"]) or _step(row)
        steps.setdefault(row["trajectory_id"], []).append(ungoverned_step(step))
        rewards.setdefault(row["trajectory_id"], {})[row["step_index"]] = row["reward"]
    feedback: dict[str, dict[str, Feedback]] = {}
    for row in client.query(_FEEDBACK, parameters=parameters).named_results():
        record = ungoverned_feedback(_feedback(row))
        feedback.setdefault(row["trajectory_id"], {})[record["event_id"]] = record  # the newer policy wins
    for name, trajectory in steps.items():
        yield Episode(trajectory, list(feedback.get(name, {}).values()), rewards[name])


def _step(row: dict[str, Any]) -> Step:
    fields = {name: row[name] for name in _STEP_COLUMNS}
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
        **{name: row[name] for name in _FEEDBACK_COLUMNS},
        event_id=row["event_id"],
        occurred_at_us=row["occurred_at_us"],
        end=row["trajectory_end"],
        governed=new_governance(source_event_id=row["source_event_id"], job=""),
    )


def _message(saved: dict[str, Any]) -> Any:
    """Return a message of a row; an older release may have written it."""
    return new_message(**saved)

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
_IDS = "tenant = {tenant:String} AND trajectory_id IN {ids:Array(String)}"
_KEY = "tenant, trajectory_id, step_index, source_key, occurred_at"
_STEPS = f"""
SELECT c.event_id AS event_id, trajectory_id, step_index, producer, tenant, consent, nullIf(user, '') AS user,
    nullIf(parent_trajectory_id, '') AS parent_trajectory_id, nullIf(parent_step_index, -1) AS parent_step_index,
    task_id, nullIf(group_id, '') AS group_id, agent, environment, harness_version, track, split, model, finish_reason,
    nullIf(error, '') AS error, duration_ms, first_token_ms, toFloat64(cost_usd) AS cost_usd,
    nullIf(shared_step, -1) AS prompt_shared_step, usage_prompt_tokens, usage_response_tokens,
    source_event_id, toUnixTimestamp64Milli(occurred_at) * 1000 AS occurred_at_us,
    shared_messages AS prompt_shared_messages, fidelity, messages, response, sampling, end, l.reward AS reward
FROM (SELECT * FROM steps FINAL WHERE {_IDS} AND consent IN {{consents:Array(String)}}) AS s
INNER JOIN (SELECT * FROM step_contents FINAL WHERE {_IDS}) AS c USING ({_KEY})
INNER JOIN
(
    SELECT trajectory_id, l.event_key AS event_key, l.reward AS reward
    FROM (SELECT * FROM trajectories FINAL WHERE {_IDS}) ARRAY JOIN step AS l
) AS l ON l.trajectory_id = s.trajectory_id AND l.event_key = reinterpretAsUInt32(substring(MD5(c.event_id), 1, 4))
ORDER BY trajectory_id, step_index
"""
_COMPUTED = {"source_event_id", "reward", "messages", "response", "sampling", "fidelity"}
"""Columns of a step that are no fields of it, or have another form there."""
_FEEDBACK = f"""
SELECT event_id, trajectory_id, nullIf(step_index, -1) AS step_index, nullIf(tool_call_id, '') AS tool_call_id,
    producer, tenant, consent, nullIf(user, '') AS user, name, value,
    nullIf(category, '') AS category, comment, demonstration,
    source, nullIf(retracts, '') AS retracts, nullIf(last_step_index, -1) AS last_step_index, source_event_id,
    toUnixTimestamp64Micro(occurred_at) AS occurred_at_us, end
FROM feedback FINAL
WHERE {_IDS} AND consent IN {{consents:Array(String)}}
ORDER BY trajectory_id, occurred_at_us, event_id
"""
_WITHDRAWN = f"""
SELECT DISTINCT trajectory_id
FROM
(
    SELECT trajectory_id, toString(tenant) AS tenant, user, toString(agent) AS agent FROM steps WHERE {_IDS}
    UNION ALL
    SELECT trajectory_id, toString(tenant), user, '' FROM feedback WHERE {_IDS}
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
        feedback.setdefault(row["trajectory_id"], {})[record["event_id"]] = record
    for name, trajectory in steps.items():
        yield Episode(trajectory, list(feedback.get(name, {}).values()), rewards[name])


def _step(row: dict[str, Any]) -> Step:
    return new_step(
        **{name: value for name, value in row.items() if name not in _COMPUTED},
        fidelity="text" if row["fidelity"] == "token" else row["fidelity"],
        messages=[_message(message) for message in orjson.loads(row["messages"])],
        response=_message(orjson.loads(row["response"])),
        sampling=new_sampling(**orjson.loads(row["sampling"])),
        governed=new_governance(source_event_id=row["source_event_id"], job=""),
    )


def _feedback(row: dict[str, Any]) -> Feedback:
    fields = {name: value for name, value in row.items() if name != "source_event_id"}
    return new_feedback(**fields, governed=new_governance(source_event_id=row["source_event_id"], job=""))


def _message(saved: dict[str, Any]) -> Any:
    """Return a message of a row; an older release may have written it."""
    return new_message(**saved)

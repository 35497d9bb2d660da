"""Answer the pages Trajectories, one trajectory, and two attempts side by side."""

import time
from functools import partial
from typing import Any

from stepstream.services.console.endpoints import TENANT, Answer, BadRequest, Call, reads
from stepstream.services.console.trajectories.compare import first_difference, is_whole
from stepstream.services.console.trajectories.facts import facts_of
from stepstream.services.console.trajectories.search import (
    OUTCOMES,
    PAGE,
    Cursor,
    Outcome,
    Search,
    search_query,
    windows,
    words_of,
)
from stepstream.services.console.trajectories.status import status_of
from stepstream.services.console.trajectories.timeline import (
    Row,
    Trajectory,
    feedback_of,
    find,
    label_of,
    steps_of,
    whole_step,
)
from stepstream.services.console.trajectories.tokens import Place, read_step, token_rows
from stepstream.services.console.trajectories.tree import tree_of
from stepstream.topics.ids import DEFAULT_TENANT

_TEXTS = ("agent", "model", "environment", "harness", "split", "task", "group", "id", "tool")
_MOST_REWARD = 1e9
_COMPARED_STEPS = 200
_DAY_MS = 86_400_000


@reads("/api/trajectories")
def trajectories(call: Call) -> Answer:
    """Return the newest trajectories that match, `next` (the cursor of the next page) and the days searched."""
    search = search_of(call)
    now_ms = time.time_ns() // 1_000_000
    # Without an end, trajectories whose producer's clock is fast are found too.
    until_ms = call.integer("until", now_ms + _DAY_MS, most=2**53)
    since_ms = call.time_range()[0] // 1000 if call.parameters.get("since") else None
    try:
        after = Cursor.parse(call.parameters["after"]) if call.parameters.get("after") else None
    except ValueError:
        raise BadRequest("after is no cursor of this search: load its first page again") from None
    rows: list[Row] = []
    days = 0
    for begin_ms, width in windows(since_ms, min(until_ms, now_ms)):
        sql, parameters = search_query(search, begin_ms, until_ms, after)
        days, rows = width, call.query(sql, **parameters)
        if len(rows) > PAGE:
            break
    more, rows = len(rows) > PAGE, rows[:PAGE]
    last = Cursor(rows[-1]["opened_ms"], rows[-1]["tenant"], rows[-1]["trajectory_id"]) if more else None
    return {"trajectories": rows, "next": str(last) if last else "", "days": days}


def search_of(call: Call) -> Search:
    """Return the search of the query string.

    Raises:
        BadRequest: a parameter has no such value.
    """
    equal: dict[str, Any] = {name: value for name in _TEXTS if (value := call.text(name, longest=256))}
    if call.parameters.get("version"):
        equal["version"] = call.integer("version", 0, most=2**31 - 1)
    for name in ("reward_least", "reward_most"):
        if number := call.parameters.get(name):
            equal[name] = _number(name, number)
    outcome = call.text("outcome")
    if outcome not in OUTCOMES:
        raise BadRequest(f"outcome must be one of {', '.join(OUTCOMES[1:])}, not {outcome[:50]}")
    chosen: Outcome = next(one for one in OUTCOMES if one == outcome)
    return Search(equal, chosen, words_of(call.text("text", longest=500)))


@reads("/api/trajectory")
def trajectory(call: Call) -> Answer:
    """Return one trajectory: its label, a page of steps, feedback, tree and group."""
    found = found_trajectory(call)
    query = partial(call.query, fresh_s=1.0)
    label = label_of(query, found)
    steps, more = steps_of(query, found, label, call.integer("after", -1, least=-1, most=2**31 - 1))
    nodes, is_cut = tree_of(query, found)
    return {
        "tenant": found.tenant,
        "trajectory_id": found.trajectory_id,
        "first_ms": found.first_ms,
        "last_ms": found.last_ms,
        "label": {name: value for name, value in label.items() if name not in _NESTED} if label else None,
        "calls": label["calls"] if label else [],
        "steps": steps,
        "more": more,
        "feedback": feedback_of(query, found),
        "tree": {"nodes": nodes, "cut": is_cut},
        "group": _group(call, found, label),
    }


@reads("/api/trajectory/status")
def status(call: Call) -> Answer:
    """Return what became of a trajectory and why: as `stepstream explain`."""
    found = found_trajectory(call)

    def query(sql: str, **parameters: Any) -> list[Row]:
        return call.services.store.query(sql, parameters)

    facts = facts_of(query, found.tenant, found.trajectory_id, (found.first_ms, found.last_ms))
    settings = call.services.settings
    answer = status_of(facts, settings.label, settings.learner)
    return {
        "state": answer.state,
        "reason": answer.reason,
        "why": answer.why,
        "would_change_it": answer.would_change_it,
        "curation": facts.curation,
        "audit": facts.audit,
    }


@reads("/api/trajectory/step")
def step(call: Call) -> Answer:
    """Return one step with its whole texts."""
    found = found_trajectory(call)
    row = whole_step(partial(call.query), found, call.integer("step", 0, most=2**31 - 1))
    if row is None:
        raise BadRequest("the trajectory has no such step")
    return {"step": row}


@reads("/api/trajectory/tokens")
def tokens(call: Call) -> Answer:
    """Return the tokens of one step's response from the log; without any, `reason` says why."""
    found = found_trajectory(call)
    index = call.integer("step", 0, most=2**31 - 1)
    query = partial(call.query)
    label = label_of(query, found)
    rows, _ = steps_of(query, found, None, index - 1, rows=1)
    if not rows or rows[0]["step_index"] != index or rows[0]["content_missing"]:
        return {"tokens": [], "reason": "The tables lack this step, or its texts."}
    if rows[0]["fidelity"] != "token":
        return {"tokens": [], "reason": "No tokens were captured for this step."}
    labelled_us = label["labelled_ms"] * 1000 if label else None
    place = Place(found.tenant, found.trajectory_id, rows[0]["event_id"], rows[0]["occurred_ms"] * 1000, labelled_us)
    record = read_step(call.services.settings, call.services.log.codec(), place)
    if record is None:
        return {"tokens": [], "reason": _NOT_ON_LOG}
    found_tokens = token_rows(record)
    return {"tokens": found_tokens, "reason": "" if found_tokens else _REMOVED}


@reads("/api/compare")
def compare(call: Call) -> Answer:
    """Return the steps of two trajectories, `left` and `right`, and where they first differ.

    `whole` is False if there are further steps, or texts were cut: they may differ there, too.
    """
    sides: dict[str, Answer] = {}
    for side in ("left", "right"):
        found = found_trajectory(call, side)
        query = partial(call.query, fresh_s=1.0)
        label = label_of(query, found)
        steps, more = steps_of(query, found, label, rows=_COMPARED_STEPS)
        sides[side] = {
            "tenant": found.tenant,
            "trajectory_id": found.trajectory_id,
            "label": {name: value for name, value in label.items() if name not in _NESTED} if label else None,
            "steps": steps,
            "more": more,
        }
    difference = first_difference(sides["left"]["steps"], sides["right"]["steps"])
    whole = not any(side["more"] for side in sides.values()) and all(is_whole(side["steps"]) for side in sides.values())
    shown = None
    if difference is not None:
        shown = {"step": difference.step, "part": difference.part, "item": difference.item, "at": difference.at}
    return {**sides, "difference": shown, "whole": whole}


def tenant_of(call: Call) -> str:
    """Return the tenant that a request is about: the user's own, or for a user of all tenants the one it names."""
    return call.tenant or DEFAULT_TENANT


def found_trajectory(call: Call, name: str = "id") -> Trajectory:
    """Return the trajectory whose id is the parameter `name`.

    Raises:
        BadRequest: the parameter is missing, or the user's tenant has no such trajectory in the tables.
    """
    trajectory_id = call.text(name, longest=1000)
    if not trajectory_id:
        raise BadRequest(f"{name} is missing: open the trajectory from the list")
    found = find(partial(call.query), tenant_of(call), trajectory_id)
    if found is None:
        raise BadRequest(
            f"tenant {tenant_of(call)} has no step of trajectory {trajectory_id[:100]} in the tables: check the id; "
            "new steps appear within seconds, and old ones leave with their retention"
        )
    return found


_NOT_ON_LOG = (
    "The step is not on the log near its time: it has left with the log's retention, or its person was erased. "
    "`stepstream export --with-tokens` searches the whole log."
)
_REMOVED = "Governance removed the tokens, because it redacted a part of this step."
_NESTED = ("step_rewards", "components", "calls")
_GROUP = f"""
SELECT trajectory_id, agent, version_min, version_max, success, end, pending, reward, steps, trainable,
    toUnixTimestamp64Milli(opened_at) AS opened_ms
FROM trajectories FINAL
WHERE {TENANT} AND tenant = {{of:String}} AND group_id = {{group:String}}
    AND opened_at >= fromUnixTimestamp64Milli({{first:Int64}}) AND opened_at <= fromUnixTimestamp64Milli({{last:Int64}})
ORDER BY opened_ms, trajectory_id LIMIT 100
"""


def _group(call: Call, found: Trajectory, label: Row | None) -> list[Row]:
    """Return the attempts of its group that began within a day of it."""
    if label is None or not label["group_id"]:
        return []
    return call.query(
        _GROUP,
        of=found.tenant,
        group=label["group_id"],
        first=found.first_ms - _DAY_MS,
        last=found.last_ms + _DAY_MS,
    )


def _number(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not abs(value) <= _MOST_REWARD:
        raise BadRequest(f"{name} must be a number, not {text[:50]}")
    return value


ENDPOINTS = (trajectories, trajectory, status, step, tokens, compare)

"""Plant trajectories that the console's pages show: a group of two attempts, a sub-agent, hostile text, two tenants."""

import time
from typing import Any

from sample_records import feedback, step, trajectory

from stepstream.config import Settings
from stepstream.jobs.clickhouse import connection
from stepstream.jobs.clickhouse.rows import TABLES, rows
from stepstream.topics import events

HOSTILE = "<script>window.hacked = 1</script><img src=x onerror='window.hacked = 2'> \u202egnp.exe\u202c ${1} {{1}}"
"""Text that would run, or show something else than it says, if it were not shown as text."""
LONG = "x" * 1_000_000
SECOND_US = 1_000_000


def put(settings: Settings, *records: tuple[str, Any]) -> None:
    """Insert the rows of records, each with its topic."""
    batches: dict[str, list[tuple[object, ...]]] = {}
    for topic, record in records:
        for table, row in rows(topic, record):
            batches.setdefault(table, []).append(row)
    with connection.connect(settings, database=settings.clickhouse.database) as client:
        for table, batch in batches.items():
            client.insert(table, batch, column_names=TABLES[table].columns)


def attempt(name: str, answers: list[str], at_us: int, **fields: Any) -> list[tuple[str, Any]]:
    """Return the steps and the label of an attempt with these answers, a second apart."""
    reward = fields.pop("reward", 0.75)
    of_step = {key: fields[key] for key in ("tenant", "group_id", "agent", "user", "consent") if key in fields}
    parent = fields.pop("parent", None)
    planted = []
    for index, answer in enumerate(answers):
        response = events.new_message(
            role="assistant",
            content=answer,
            tool_calls=[events.new_tool_call(call_id="1", name="get", arguments=f'{{"page": {index}}}')],
        )
        messages = [events.new_message(role="user", content=f"Observation {index} for <EMAIL:3f9a21bc>")]
        planted.append(
            (
                "governed-steps",
                step(
                    name,
                    index,
                    at_us + index * SECOND_US,
                    response=response,
                    messages=messages,
                    parent_trajectory_id=parent,
                    parent_step_index=None if parent is None else 0,
                    governed=events.new_governance(
                        source_event_id=f"{name}-{index}/source", job="govern@1", redactions={"email": 1}
                    ),
                    **of_step,
                ),
            )
        )
    terms = [events.new_reward_component(name="outcome", value=reward, weight=1.0, source="environment")]
    steps = [
        events.new_labeled_step(
            step_index=index,
            event_id=f"{name}-{index}",
            reward=reward if index + 1 == len(answers) else 0.0,
            return_to_go=reward,
            components=terms if index + 1 == len(answers) else [],
            tool_calls=[events.new_tool_call(call_id="1", name="get", arguments="{}", error="timeout")],
        )
        for index in range(len(answers))
    ]
    label = trajectory(
        name,
        steps=steps,
        reward=reward,
        started_at_us=at_us,
        ended_at_us=at_us + len(answers) * SECOND_US,
        parent_trajectory_id=parent,
        **{"model": "planted"} | fields,
    )
    return [*planted, ("labeled-trajectories", label)]


def plant(settings: Settings) -> None:
    """Insert the rows of all pages."""
    now_us = time.time_ns() // 1000
    begin = now_us - 600 * SECOND_US
    records = [
        *attempt("left", ["look", "buy apples"], begin, group_id="g", success=True, reward=1.0),
        *attempt("right", ["look", "buy pears"], begin + SECOND_US, group_id="g", success=False, reward=0.0, version=2),
        *attempt("child", ["ask"], begin + 2 * SECOND_US, parent="left", agent="helper"),
        *attempt("hostile", [HOSTILE, LONG], begin + 3 * SECOND_US, agent=HOSTILE, flags=["held:near_duplicate:x"]),
        *attempt("secret", ["acme only"], begin + 4 * SECOND_US, tenant="acme", agent="a"),
        ("governed-feedback", feedback("f1", trajectory_id="left", occurred_at_us=now_us, comment=HOSTILE)),
        ("governed-feedback", feedback("f2", trajectory_id="left", occurred_at_us=now_us, name="quality", value=0.0,
            source="judge")),
        ("governed-feedback", feedback("f3", trajectory_id="left", occurred_at_us=now_us, name="shadow.quality",
            value=1.0, source="verifier")),
        ("consents", events.new_consent_change(event_id="k1", occurred_at_us=now_us, tenant="default", user="ada",
            consent="analyse")),
        ("consents", events.new_consent_change(event_id="k2", occurred_at_us=now_us, tenant="acme", user="bob",
            consent="none")),
        ("erasures", events.new_erasure(event_id="x1", occurred_at_us=now_us, tenant="default", subject="cd" * 20)),
    ]  # fmt: skip
    put(settings, *records)

"""Read the view of an agent: its newest governed trajectories with an outcome, whose consent permits training."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

from clickhouse_connect.driver.binding import format_query_value
from clickhouse_connect.driver.client import Client

from stepstream.config import Settings
from stepstream.crypto.key_ring import sealing_codec
from stepstream.jobs.clickhouse.connection import connect
from stepstream.jobs.clickhouse.export import episodes, matching_pages
from stepstream.jobs.clickhouse.outcome import OUTCOME
from stepstream.jobs.clickhouse.step_cache import StepCache
from stepstream.services.control.optimise.prompts import is_comparable, own_prompt
from stepstream.services.control.optimise.records import Attempt, View
from stepstream.topics.events import Harness, Step

_NEWEST = f"""
SELECT trajectory_id, outcome, task_family, toUnixTimestamp64Micro(opened_at) AS opened_us
FROM
(
    SELECT
        trajectory_id,
        opened_at,
        {OUTCOME} AS outcome,
        replaceRegexpOne(task_id, '[/:#][^/:#]*$', '') AS task_family
    FROM trajectories FINAL
    WHERE tenant = {{tenant:String}} AND agent = {{agent:String}}
        AND ({{untrained:String}} = '' OR (model = {{untrained:String}} AND trajectory_id NOT IN (
            SELECT trajectory_id FROM training_decisions
            WHERE tenant = {{tenant:String}} AND model = {{untrained:String}} AND outcome = 'trained'
        )))
)
WHERE outcome IS NOT NULL
ORDER BY opened_at DESC
LIMIT {{limit:UInt32}}
"""


def read_view(
    settings: Settings,
    tenant: str,
    agent: str,
    versions: Mapping[str, Harness],
    parent: Harness,
    *,
    untrained_by: str = "",
) -> View:
    """Return the newest `optimise.trajectories` of an agent that can stand for prompts under the parent.

    Where trajectories call tools, the whole topic of governed steps is read for the definitions of the tools.

    Args:
        settings: addresses of the store and of Kafka.
        tenant: tenant of the agent.
        agent: its name.
        versions: its harness versions.
        parent: harness to improve.
        untrained_by: model whose held-out trajectories are read: those of the model that its learner did not train on;
            empty: those of all models.

    Raises:
        ClickHouseError: the store rejects a query.
        StoreUnavailableError: it does not answer.
    """
    with closing(connect(settings, database=settings.clickhouse.database, reads_only=True)) as client:
        known = newest(client, tenant, agent, settings.optimise.trajectories, untrained_by=untrained_by)
        if not known:
            return View(tenant, agent, ())
        since = min(row[2] for row in known.values())
        names = f"tenant = {format_query_value(tenant)} AND agent = {format_query_value(agent)}"
        where = f"{names} AND opened_at >= fromUnixTimestamp64Micro({since})"
        trajectories = {
            steps[0]["trajectory_id"]: steps
            for steps in _trajectories(settings, client, where)
            if steps[0]["trajectory_id"] in known
        }
    return View(tenant, agent, tuple(_attempts(trajectories, known, versions, parent)))


def newest(
    client: Client, tenant: str, agent: str, limit: int, *, untrained_by: str = ""
) -> dict[str, tuple[Any, ...]]:
    """Return outcome, task family and begin (microseconds) of the newest trajectories; arguments as `read_view`.

    Raises:
        ClickHouseError: the store rejects the query.
    """
    parameters = {"tenant": tenant, "agent": agent, "limit": limit, "untrained": untrained_by}
    return {row[0]: tuple(row[1:]) for row in client.query(_NEWEST, parameters=parameters).result_rows}


def _trajectories(settings: Settings, client: Client, where: str) -> list[list[Step]]:
    with ExitStack() as stack:
        pages = list(matching_pages(client, where, "train"))
        found = [episode.steps for page in pages for episode in episodes(client, page, "train")]
        if not any(step["response"]["tool_calls"] for steps in found for step in steps):
            return found
        folder = Path(stack.enter_context(TemporaryDirectory()))
        cache = stack.enter_context(closing(StepCache(folder / "steps.db")))
        codec = stack.enter_context(closing(sealing_codec(settings)))
        cache.fill(settings, codec, {(page.tenant, name) for page in pages for name in page.ids})
        return [episode.steps for page in pages for episode in episodes(client, page, "train", cache.get)]


def _attempts(
    trajectories: Mapping[str, list[Step]],
    known: Mapping[str, tuple[Any, ...]],
    versions: Mapping[str, Harness],
    parent: Harness,
) -> Iterator[Attempt]:
    for name, steps in sorted(trajectories.items()):
        first, (success, family, _) = steps[0], known[name]
        if first["step_index"] or first["error"] or not is_comparable(first["harness_version"], versions, parent):
            continue
        prompt = own_prompt(first["messages"], versions.get(first["harness_version"]))
        removed = len(first["messages"]) - len(prompt)
        own = [cast(Step, {**first, "messages": prompt}), *(_without(step, removed) for step in steps[1:])]
        yield Attempt(name, first["task_id"], family, tuple(own), bool(success))


def _without(step: Step, removed: int) -> Step:
    """Return a later step, which shares its first messages, after messages were removed from the first prompt."""
    shared = step["prompt_shared_messages"]
    return cast(Step, {**step, "prompt_shared_messages": max(0, shared - removed)}) if shared else step

"""Query the store for the statistics of a scope. A table that gives no answer is named in `Statistics.missing`."""

import logging
from typing import Any

from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import ClickHouseError

from stepstream.analytics.success import Attempts
from stepstream.analytics.tools import Calls
from stepstream.config import Settings
from stepstream.jobs.clickhouse.connection import StoreUnavailableError, connect
from stepstream.jobs.clickhouse.outcome import OUTCOME
from stepstream.jobs.rewards.builtin_components import MALFORMED
from stepstream.services.control.approved import ApprovedVersion
from stepstream.services.control.decide.records import Canary, Groups
from stepstream.services.control.history import AUTHOR
from stepstream.services.control.scope import Scope
from stepstream.services.control.statistics import BeforeRow, OutcomeRow, Position, Statistics, ToolRow

log = logging.getLogger(__name__)

STORE_FAULTS = (StoreUnavailableError, ClickHouseError)
"""Raised while the store does not answer."""

_TIMEOUT_S = 30.0
_MOST_OUTCOMES = 50_000
_MOST_GROUPS = 1000
_BASELINE_DAYS = 7
_DAY_US = 86_400_000_000

_FAMILY = "replaceRegexpOne(task_id, '[/:#][^/:#]*$', '')"
_OF_SCOPE = (
    "tenant = {tenant:String} AND agent = {agent:String} AND model = {model:String} AND split != 'eval'"
    " AND parent_trajectory_id = ''"
)
_SINCE = (
    " AND opened_at >= fromUnixTimestamp64Micro({since:Int64}) AND opened_at < fromUnixTimestamp64Micro({until:Int64})"
)
_CLUSTER = (
    "multiIf(group_id != '', concat('g:', group_id),"
    " user != '', concat('u:', toString(sipHash64(user)), ':', toString(toDate(opened_at))), '')"
)

_WEIGHTS = (
    "if(version_min = version_max, toString(version_min), concat(toString(version_min), '-', toString(version_max)))"
)

_SCOPES = (
    "SELECT tenant, agent, model FROM trajectories"
    " WHERE opened_at >= fromUnixTimestamp64Micro({since:Int64}) AND agent != '' AND model != ''"
    " GROUP BY tenant, agent, model ORDER BY tenant, agent, model"
)
# One that nobody judged (no outcome, nothing pending) counts only for the harm of a version in canary.
_CLOSED = f"""
SELECT toUnixTimestamp64Micro(opened_at) AS opened_us, trajectory_id, track, harness_version, {OUTCOME} AS outcome,
    {_CLUSTER} AS cluster, {_FAMILY} AS family,
    multiIf(outcome IS NULL AND empty(pending), 'unjudged', outcome IS NULL OR outcome, '',
        hasAny(call.error, {{malformed:Array(String)}}), 'format',
        arrayExists(x -> x != '', call.error), 'tool', 'capability') AS failure,
    end = 'truncated' AND success IS NULL AND empty(pending)
        OR arrayExists((n, v) -> n = 'violation' AND v > 0, component.name, component.raw) AS harmed,
    {_WEIGHTS}
FROM trajectories FINAL
WHERE {_OF_SCOPE}{_SINCE} AND (outcome IS NOT NULL OR notEmpty(pending)
    OR track = 'canary' OR harness_version = {{harness:String}} AND harness_version != '')
ORDER BY opened_at DESC, trajectory_id DESC LIMIT {_MOST_OUTCOMES}
"""
# One that began before the range is not assigned in it, and its closed row is not in the range either.
_OPEN = f"""
SELECT toUnixTimestamp64Micro(min(occurred_at)) AS opened_us, trajectory_id, any(track), any(harness_version),
    multiIf(any(group_id) != '', concat('g:', any(group_id)), any(user) != '',
        concat('u:', toString(sipHash64(any(user))), ':', toString(toDate(min(occurred_at)))), ''),
    replaceRegexpOne(any(task_id), '[/:#][^/:#]*$', ''), max(version_max) AS newest,
    if(newest < 0, newest, minIf(version_min, version_min >= 0)) AS oldest,
    if(oldest = newest, toString(newest), concat(toString(oldest), '-', toString(newest)))
FROM steps
WHERE tenant = {{tenant:String}} AND agent = {{agent:String}} AND model = {{model:String}} AND split != 'eval'
    AND occurred_at >= fromUnixTimestamp64Micro({{since:Int64}})
    AND trajectory_id NOT IN (SELECT trajectory_id FROM trajectories WHERE tenant = {{tenant:String}}
        AND opened_at >= fromUnixTimestamp64Micro({{since:Int64}}))
    AND trajectory_id NOT IN (SELECT trajectory_id FROM step_contents WHERE tenant = {{tenant:String}}
        AND occurred_at >= fromUnixTimestamp64Micro({{since:Int64}}) AND parent_trajectory_id != '')
GROUP BY trajectory_id
HAVING min(step_index) = 0 AND max(occurred_at) >= fromUnixTimestamp64Micro({{idle:Int64}})
LIMIT {_MOST_OUTCOMES}
"""
# A cluster counts once in all, as in the outcomes that are compared with these.
_BEFORE = f"""
SELECT family, harness_version, weights, toUInt64(round(sum(part))), toUInt64(round(sumIf(part, outcome)))
FROM
(
    SELECT {_FAMILY} AS family, harness_version, {_WEIGHTS} AS weights, {OUTCOME} AS outcome, {_CLUSTER} AS cluster,
        if(cluster = '', 1, 1 / count() OVER (PARTITION BY cluster)) AS part
    FROM trajectories FINAL
    WHERE {_OF_SCOPE}{_SINCE} AND {OUTCOME} IS NOT NULL AND track = 'stable'
)
GROUP BY family, harness_version, weights ORDER BY family, harness_version, weights
"""
_TOOLS = f"""
SELECT tool, class, sumIf(calls, NOT is_window) AS before, sumIf(errors, NOT is_window), sumIf(calls, is_window),
    sumIf(errors, is_window)
FROM
(
    WITH counted AS
    (
        SELECT tool, false AS is_window, calls, error.class AS classes, error.calls AS amounts
        FROM tool_hours FINAL
        WHERE tenant = {{tenant:String}} AND agent = {{agent:String}} AND model = {{model:String}}
            AND hour >= toStartOfHour(fromUnixTimestamp64Micro({{window:Int64}})) - INTERVAL {_BASELINE_DAYS} DAY
            AND hour < toStartOfHour(fromUnixTimestamp64Micro({{window:Int64}}))
        UNION ALL
        SELECT c.1 AS tool, opened_at >= fromUnixTimestamp64Micro({{window:Int64}}) AS is_window, 1 AS calls,
            if(c.2 = '', [], [c.2]) AS classes, if(c.2 = '', [], [toUInt64(1)]) AS amounts
        FROM trajectories FINAL
        ARRAY JOIN arrayZip(arrayMap(x -> toString(x), call.tool), arrayMap(x -> toString(x), call.error)) AS c
        WHERE tenant = {{tenant:String}} AND agent = {{agent:String}} AND model = {{model:String}}
            AND opened_at >= toStartOfHour(fromUnixTimestamp64Micro({{window:Int64}}))
            AND opened_at < fromUnixTimestamp64Micro({{until:Int64}})
    ),
    classes AS (SELECT DISTINCT tool, arrayJoin(classes) AS class FROM counted)
    SELECT counted.tool AS tool, classes.class AS class, is_window, calls,
        arraySum(arrayMap((c, n) -> if(c = classes.class, n, 0), counted.classes, amounts)) AS errors
    FROM counted INNER JOIN classes ON counted.tool = classes.tool
)
GROUP BY tool, class ORDER BY tool, class
"""
_GROUPS = f"""
SELECT count(), countIf(successes IN (0, n)), avg(successes / n)
FROM
(
    SELECT count() AS n, countIf(success) AS successes
    FROM trajectories FINAL
    WHERE {_OF_SCOPE}{_SINCE} AND group_id != '' AND success IS NOT NULL
    GROUP BY group_id HAVING n > 1 ORDER BY max(opened_at) DESC LIMIT {_MOST_GROUPS}
)
"""
_FAMILIES = f"""
SELECT group_id != '' AS trains, groupUniqArray({_FAMILY})
FROM trajectories FINAL WHERE {_OF_SCOPE}{_SINCE} AND task_id != '' GROUP BY trains
"""
_TRAINED = f"""
SELECT {_FAMILY} AS family, count(), countIf({OUTCOME})
FROM trajectories FINAL
WHERE {_OF_SCOPE}{_SINCE} AND {OUTCOME} IS NOT NULL AND task_id != '' AND group_id != ''
GROUP BY family ORDER BY family
"""
_STALENESS = """
SELECT quantileExact(0.95)(staleness), count() FROM training_decisions FINAL
WHERE tenant = {tenant:String} AND model = {model:String} AND outcome = 'trained' AND staleness IS NOT NULL
    AND occurred_at >= fromUnixTimestamp64Micro({since:Int64})
"""
_BY_HAND = f"""
SELECT toUnixTimestamp64Micro(occurred_at) AS at_us, toString(stable_version) FROM rollouts FINAL
WHERE model = {{model:String}} AND action = 'promote' AND author != '{AUTHOR}' AND stable_version IS NOT NULL
ORDER BY rollouts.occurred_at DESC LIMIT 1
"""
_OF_VERSION = f"""
SELECT count(), countIf({OUTCOME})
FROM trajectories FINAL
WHERE {_OF_SCOPE}{_SINCE} AND {OUTCOME} IS NOT NULL AND track = 'stable' AND if({{weights:Bool}},
    version_min = version_max AND toString(version_min) = {{version:String}}, harness_version = {{version:String}})
"""


class StoreQueries:
    """Queries over one connection. Use it from one thread."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._client: Client | None = None
        self._malformed = sorted(MALFORMED)

    def close(self) -> None:
        """Close the connection."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def scopes(self, since_us: int) -> list[Scope]:
        """Return tenants, agents and models with a trajectory since a time.

        Raises:
            StoreUnavailableError: the store cannot be reached.
            ClickHouseError: the query failed.
        """
        return [Scope(*row) for row in self._rows(_SCOPES, since=since_us)]

    def statistics(
        self,
        scope: Scope,
        position: Position,
        at_us: int,
        since_us: int,
        promoted_us: int | None,
        harness: str = "",
    ) -> Statistics:
        """Return the statistics of a scope; each table that fails is in `missing`.

        Args:
            scope: tenant, agent and model.
            position: what the tables hold.
            at_us: end of all intervals.
            since_us: begin of the outcomes.
            promoted_us: time of the newest promotion; None: there is none.
            harness: harness version in canary; empty: there is none.
        """
        control = self._settings.control
        window_us, tools_us = (at_us - round(s * 1e6) for s in (control.window_s, control.tool_window_s))
        idle_us = at_us - round(self._settings.label.idle_timeout_of(scope.agent) * 1e6)
        missing: list[str] = []

        def ask(table: str, sql: str, **more: int | str) -> list[Any]:
            try:
                return self._rows(sql, **scope._asdict(), **{"until": at_us, **more})
            except (ClickHouseError, OSError) as error:
                log.warning("the query about %s failed: %s", table, str(error).splitlines()[:1])
                missing.append(table)
                self.close()
                return []

        closed = ask("trajectories", _CLOSED, since=since_us, harness=harness)
        opened = ask("steps", _OPEN, since=since_us, idle=idle_us)
        rows = [(row[0], row[1], OutcomeRow._make((row[0], *row[2:9], row[1], row[9]))) for row in closed]
        rows += [
            (us, name, OutcomeRow(us, track, harness_version, None, cluster, family, "", False, name, weights))
            for us, name, track, harness_version, cluster, family, _, _, weights in opened
        ]
        before = []
        if promoted_us is not None:
            begin_us = promoted_us - round(control.window_s * 1e6)
            before = ask("trajectories", _BEFORE, since=begin_us, until=promoted_us)
        tools = ask("tool_hours", _TOOLS, window=tools_us)
        [(n, alike, mean)] = ask("trajectories", _GROUPS, since=window_us) or [(0, 0, 0.0)]
        families = dict(ask("trajectories", _FAMILIES, since=window_us))
        [(staleness, trained)] = ask("training_decisions", _STALENESS, since=window_us) or [(0, 0)]
        return Statistics(
            position,
            tuple(row for _, _, row in sorted(rows, key=lambda each: each[:2])),
            tuple(BeforeRow(row[0], row[1], row[2], Attempts(*row[3:])) for row in before),
            tuple(ToolRow(t, e, Calls(n0, x0), Calls(n1, x1)) for t, e, n0, x0, n1, x1 in tools),
            Groups(n, alike, float(mean)) if n else None,
            frozenset(families.get(False, ())),
            frozenset(families.get(True, ())),
            float(staleness) if trained else None,
            window_us,
            tools_us,
            tools_us - _BASELINE_DAYS * _DAY_US,
            tuple(dict.fromkeys(missing)),
        )

    def trained(self, scope: Scope, at_us: int) -> dict[str, Attempts]:
        """Return the success of each task family in training, in the `window_s` seconds before a time.

        Raises:
            StoreUnavailableError, ClickHouseError: the store does not answer.
        """
        since_us = at_us - round(self._settings.control.window_s * 1e6)
        rows = self._rows(_TRAINED, **scope._asdict(), since=since_us, until=at_us)
        return {family: Attempts(n, successes) for family, n, successes in rows}

    def promoted_by_hand(self, model: str) -> list[ApprovedVersion]:
        """Return the newest version of the weights that a person promoted, if there is one.

        Raises:
            StoreUnavailableError, ClickHouseError: the store does not answer.
        """
        return [ApprovedVersion(*row) for row in self._rows(_BY_HAND, model=model)]

    def attempts_of(self, scope: Scope, canary: Canary, approved: ApprovedVersion) -> Attempts:
        """Return the success of an approved version in its first `window_s` seconds.

        Raises:
            StoreUnavailableError, ClickHouseError: the store does not answer.
        """
        until_us = approved.at_us + round(self._settings.control.window_s * 1e6)
        times = {"since": approved.at_us, "until": until_us}
        is_weights = canary.lever == "weights"
        [row] = self._rows(_OF_VERSION, **scope._asdict(), **times, version=approved.version, weights=is_weights)
        return Attempts(*row)

    def _rows(self, sql: str, **parameters: Any) -> list[Any]:
        if self._client is None:
            database = self._settings.clickhouse.database
            self._client = connect(self._settings, database=database, timeout_s=_TIMEOUT_S, reads_only=True)
        return list(self._client.query(sql, parameters={**parameters, "malformed": self._malformed}).result_rows)

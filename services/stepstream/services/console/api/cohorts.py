"""Sum trajectories: over the facts for ranges of up to a day, over the rollup by hour for longer ones."""

from stepstream.jobs.clickhouse.outcome import OUTCOME
from stepstream.services.console.api.sql import between, hours
from stepstream.services.console.endpoints import TENANT

_DAY_US = 86_400_000_000
_FACTS = f"""
SELECT agent, model, harness_version, split, version_max AS policy_version, 1 AS n,
    toUInt8({OUTCOME} IS NOT NULL) AS known, toUInt8(ifNull(success, false)) AS good, steps, response_tokens,
    reward, ended_at AS at
FROM trajectories FINAL WHERE {TENANT} AND {between("opened_at")}
"""
_ROLLUP = f"""
SELECT agent, model, harness_version, split, policy_version, trajectories AS n, outcomes AS known,
    successes AS good, steps, response_tokens, reward_sum AS reward, toDateTime64(hour, 3, 'UTC') AS at
FROM trajectory_hours FINAL WHERE {TENANT} AND {hours()}
"""
_STALENESS_OF_FACTS = f"""
SELECT avg(greatest(0, c.version - t.version_min)) AS mean, max(greatest(0, c.version - t.version_min)) AS max
FROM
(
    SELECT model, ended_at, version_min FROM trajectories FINAL
    WHERE {TENANT} AND {between("opened_at")} AND model = {{model:String}} AND split = 'train' AND version_min >= 0
) AS t
ASOF INNER JOIN (SELECT model, version, occurred_at FROM checkpoints FINAL) AS c
    ON t.model = c.model AND t.ended_at >= c.occurred_at
"""
_STALENESS_OF_ROLLUP = f"""
SELECT sum(behind * n) / sum(n) AS mean, maxIf(behind, n > 0) AS max
FROM
(
    SELECT lag.versions AS versions, lag.trajectories AS trajectories FROM trajectory_hours FINAL
    WHERE {TENANT} AND {hours()} AND model = {{model:String}} AND split = 'train'
)
ARRAY JOIN versions AS behind, trajectories AS n
"""


def _is_long(since_us: int, until_us: int) -> bool:
    return until_us - since_us > _DAY_US


def cohorts(since_us: int, until_us: int) -> str:
    """Return the query of the parts to sum: counts `n`, `known` (with outcome) and `good`, sums, and time `at`.

    Of a range longer than a day, the first hour counts whole.
    """
    return _ROLLUP if _is_long(since_us, until_us) else _FACTS


def staleness(since_us: int, until_us: int) -> str:
    """Return the query of the `mean` and `max` staleness of a model's training trajectories."""
    return _STALENESS_OF_ROLLUP if _is_long(since_us, until_us) else _STALENESS_OF_FACTS

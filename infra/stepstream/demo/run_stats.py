"""Query ClickHouse for the statistics of one run, which the live view and the report show."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from math import sqrt
from typing import Any

from stepstream.config import Settings
from stepstream.jobs.clickhouse.connection import connect

Z95 = 1.959963984540054


_OWN = (
    "FROM trajectories FINAL WHERE model = {model:String} AND version_max >= {root:Int32}"
    " AND started_at >= fromUnixTimestamp64Micro({since:Int64})"
)
"""Trajectories of the run."""


@dataclass(frozen=True, slots=True)
class Rate:
    """Successes among n attempts, with the 95 % Wilson score interval (Wilson 1927)."""

    successes: int
    n: int

    @property
    def value(self) -> float | None:
        """Share of successes; None without attempts."""
        return self.successes / self.n if self.n else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """Lower and upper bound; None without attempts."""
        if not self.n:
            return None
        p, z, n = self.successes / self.n, Z95, self.n
        centre, half = p + z * z / (2 * n), z * sqrt(p * (1 - p) / n + z * z / (4 * n * n))
        return (centre - half) / (1 + z * z / n), (centre + half) / (1 + z * z / n)

    def facts(self, name: str) -> dict[str, Any]:
        """Return the report's fields: the share and its interval (null without attempts), successes and attempts."""
        return {
            name: self.value,
            f"{name}_interval": self.interval,
            f"{name}_successes": self.successes,
            f"{name}_n": self.n,
        }


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Statistics of the run at one moment."""

    recent: Rate = Rate(0, 0)
    """Success of the last `demo.window` training trajectories."""
    by_version: list[tuple[int, Rate]] = field(default_factory=list)
    """Success by policy version, ascending."""
    steps: int = 0
    steps_per_second: float = 0.0
    """Mean of the last 10 s."""
    trajectories: int = 0
    newest_version: int | None = None
    staleness_max: float | None = None
    served: dict[str, int | None] = field(default_factory=dict)
    """Version that each worker serves; None: no version yet."""


class RunStats:
    """Queries over one run: trajectories of one model since `since_us`, sampled by `root_version` or a later one.

    Rates are over `success` alone, without the console's rule that a time-out is a failure: the agents report the
    outcome of each attempt that reaches its limit. Those without one were abandoned or lost, as at the fleet's stop.
    """

    def __init__(self, settings: Settings, since_us: int, root_version: int) -> None:
        """Connect to ClickHouse; `since_us` is in microseconds since 1970."""
        self._client = connect(settings, database=settings.clickhouse.database, reads_only=True)
        self._window = settings.demo.window
        self._parameters = {"since": since_us, "model": settings.learner.model, "root": root_version}

    def snapshot(self) -> Snapshot:
        """Query the statistics of the live view, which lag behind the log by about a second."""
        by_version = [
            (int(version), Rate(int(successes), int(n)))
            for version, successes, n in self._rows(
                "SELECT version_max, countIf(success), countIf(success IS NOT NULL) FROM trajectories FINAL"
                " WHERE model = {model:String} AND split = 'train' AND version_max >= {root:Int32}"
                " AND started_at >= fromUnixTimestamp64Micro({since:Int64})"
                " GROUP BY version_max ORDER BY version_max"
            )
        ]
        successes, n = self._row(
            "SELECT countIf(success), count() FROM (SELECT success FROM trajectories FINAL WHERE model = {model:String}"
            " AND split = 'train' AND success IS NOT NULL AND version_max >= {root:Int32}"
            f" AND started_at >= fromUnixTimestamp64Micro({{since:Int64}}) ORDER BY ended_at DESC LIMIT {self._window})"
        )
        steps, speed = self._row(
            "SELECT uniqExact(tenant, trajectory_id, step_index),"
            " uniqExactIf((tenant, trajectory_id, step_index), occurred_at > now64(3) - INTERVAL 10 SECOND) / 10"
            " FROM steps WHERE occurred_at >= fromUnixTimestamp64Micro({since:Int64})"
        )
        newest, staleness = self._row(
            "SELECT max(version), max(metrics['staleness_max']) FROM checkpoints FINAL"
            " WHERE model = {model:String} AND version >= {root:Int32}"
        )
        served = {
            str(worker): None if version is None else int(version)
            for worker, version in self._rows("SELECT worker_id, version FROM workers WHERE model = {model:String}")
        }
        return Snapshot(
            Rate(int(successes), int(n)),
            by_version,
            int(steps),
            float(speed),
            sum(rate.n for _, rate in by_version),
            int(newest),
            float(staleness),
            served,
        )

    def held_out(self, trajectory_ids: list[str]) -> Rate:
        """Return the labelled success of these evaluation trajectories."""
        successes, n = self._row(
            "SELECT countIf(success), countIf(success IS NOT NULL) FROM trajectories FINAL"
            " WHERE trajectory_id IN {ids:Array(String)}",
            {"ids": trajectory_ids},
        )
        return Rate(int(successes), int(n))

    def stored_steps(self, trajectory_ids: list[str]) -> Mapping[str, tuple[int, int]]:
        """Return, by trajectory, the distinct step indexes and the deduplicated rows of the steps table."""
        stored: dict[str, tuple[int, int]] = {}
        for start in range(0, len(trajectory_ids), 5000):
            for trajectory_id, distinct, rows in self._rows(
                "SELECT trajectory_id, uniqExact(step_index), count() FROM steps FINAL"
                " WHERE trajectory_id IN {ids:Array(String)} GROUP BY trajectory_id",
                {"ids": trajectory_ids[start : start + 5000]},
            ):
                stored[str(trajectory_id)] = int(distinct), int(rows)
        return stored

    def unlabelled(self, trajectory_ids: Collection[str]) -> set[str]:
        """Return those of the trajectories that have no label in the table."""
        rows = self._rows(
            "SELECT DISTINCT trajectory_id FROM trajectories WHERE trajectory_id IN {ids:Array(String)}",
            {"ids": list(trajectory_ids)},
        )
        return set(trajectory_ids) - {str(trajectory_id) for (trajectory_id,) in rows}

    def served_max_lag(self) -> int:
        """Return the maximum over the run of a worker's newest known version minus its served version."""
        (lag,) = self._row(
            "SELECT max(greatest(0, newest_version - version)) FROM worker_status WHERE model = {model:String}"
            " AND version >= {root:Int32} AND occurred_at >= fromUnixTimestamp64Micro({since:Int64})"
        )
        return int(lag or 0)

    def swaps(self) -> int:
        """Return the number of versions that sampled whole trajectories after the first such version."""
        (count,) = self._row(f"SELECT uniqExact(version_max) {_OWN} AND split = 'train'")
        return max(0, int(count) - 1)

    def trajectories_on(self, track: str) -> int:
        """Return the number of labelled trajectories on a track."""
        (count,) = self._row(f"SELECT count() {_OWN} AND track = {{track:String}}", {"track": track})
        return int(count)

    def success_of(self, version: int) -> Rate:
        """Return the success of the trajectories that one version sampled alone."""
        successes, n = self._row(
            f"SELECT countIf(success), countIf(success IS NOT NULL) {_OWN}"
            " AND version_min = {version:Int32} AND version_max = {version:Int32}",
            {"version": version},
        )
        return Rate(int(successes), int(n))

    def served(self, worker: str) -> int | None:
        """Return the version that a worker serves."""
        return self.snapshot().served.get(worker)

    def failed_requests(self) -> int:
        """Return the number of model calls that ended with an error, without those that the agent's end cut off."""
        (count,) = self._row(
            "SELECT countIf(error NOT IN ('', 'client_disconnected')) FROM steps FINAL"
            " WHERE model = {model:String}"
            " AND occurred_at >= fromUnixTimestamp64Micro({since:Int64})"
        )
        return int(count)

    def prefix_kept(self) -> tuple[float, int]:
        """Return the share of answered later steps whose prompt begins with the step before, and their number.

        It compares token by token. A step without an answer, as one that the agent's end cut off, has no tokens.
        Without later steps the share is 1.
        """
        kept, later = self._row(
            "SELECT countIf(later.shared_tokens ="
            " before.shared_tokens + before.prompt_tokens + before.response_tokens), count()"
            " FROM (SELECT * FROM steps FINAL WHERE model = {model:String} AND error = ''"
            " AND occurred_at >= fromUnixTimestamp64Micro({since:Int64})) AS later"
            " INNER JOIN (SELECT * FROM steps FINAL WHERE model = {model:String}) AS before"
            " ON before.tenant = later.tenant AND before.trajectory_id = later.trajectory_id"
            " AND before.step_index = later.step_index - 1"
        )
        return (int(kept) / int(later) if later else 1.0), int(later)

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def _row(self, query: str, parameters: Mapping[str, Any] | None = None) -> Any:
        return self._rows(query, parameters)[0]

    def _rows(self, query: str, parameters: Mapping[str, Any] | None = None) -> list[Any]:
        return list(self._client.query(query, parameters={**self._parameters, **(parameters or {})}).result_rows)

"""Query ClickHouse for the success of the agent's production trajectories: those outside training groups."""

from dataclasses import dataclass
from typing import Any

from stepstream.config import Settings
from stepstream.demo.run_stats import Rate
from stepstream.jobs.clickhouse.connection import connect

_WHERE = (
    " FROM trajectories FINAL WHERE agent = {agent:String} AND group_id = '' AND success IS NOT NULL"
    " AND opened_at >= fromUnixTimestamp64Micro({since:Int64}) AND opened_at < fromUnixTimestamp64Micro({until:Int64})"
)


@dataclass(frozen=True, slots=True)
class Point:
    """Success in an interval of time."""

    at_us: int
    """Middle of the interval."""
    rate: Rate


class Production:
    """Queries about one agent."""

    def __init__(self, settings: Settings, agent: str) -> None:
        """Connect to ClickHouse."""
        self._client = connect(settings, database=settings.clickhouse.database, reads_only=True)
        self._agent = agent

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def success(self, since_us: int, until_us: int) -> Rate:
        """Return the success of the trajectories that opened in an interval."""
        [(successes, n)] = self._rows("SELECT countIf(success), count()" + _WHERE, since_us, until_us)
        return Rate(int(successes), int(n))

    def curve(self, since_us: int, until_us: int, width_s: int = 5) -> list[Point]:
        """Return success by interval of `width_s` seconds, in order of time."""
        middle = width_s * 500_000
        return [
            Point(int(at) * 1_000_000 + middle, Rate(int(successes), int(n)))
            for at, successes, n in self._rows(
                f"SELECT intDiv(toUnixTimestamp(opened_at), {width_s}) * {width_s} AS at, countIf(success), count()"
                + _WHERE
                + " GROUP BY at ORDER BY at",
                since_us,
                until_us,
            )
        ]

    def solved(self, family: str, since_us: int, until_us: int, most: int) -> list[str]:
        """Return task ids of a family that the agent solved in an interval, the newest first."""
        rows = self._rows(
            "SELECT task_id" + _WHERE + " AND success AND startsWith(task_id, {family:String})"
            f" ORDER BY opened_at DESC LIMIT {most}",
            since_us,
            until_us,
            family=f"{family}/",
        )
        return [str(task_id) for (task_id,) in rows]

    def _rows(self, query: str, since_us: int, until_us: int, **more: Any) -> list[Any]:
        parameters = {"agent": self._agent, "since": since_us, "until": until_us, **more}
        return list(self._client.query(query, parameters=parameters).result_rows)

"""Choose the width of a chart's points by the extent of its data: seconds for a demo of minutes, days for a quarter."""

from dataclasses import dataclass
from typing import Any

from stepstream.services.console.endpoints import Answer, Call

HOUR_S = 3600
SHORT_S = 6 * HOUR_S
"""Longest extent whose points come from the facts; longer ones come from the rollups by hour."""
_MOST_POINTS = 150
_FINE_S = (10, 60, 300)
_COARSE_S = (HOUR_S, 24 * HOUR_S)


def bucket_s(extent_s: float) -> int:
    """Return the width of a point in seconds: less than an hour for data of up to `SHORT_S` seconds."""
    widths = _FINE_S if extent_s <= SHORT_S else _COARSE_S
    return next((width for width in widths if extent_s / width <= _MOST_POINTS), widths[-1])


@dataclass(frozen=True)
class Source:
    """Queries of one table, with the same parameters."""

    extent: str
    """Returns one row: `extent`, the seconds between the first and the last record."""
    points: str
    """Returns the points of `bucket` seconds."""


def points(call: Call, rollup: Source, facts: Source, **parameters: Any) -> Answer:
    """Return `points`, from the facts if the rollup's records are of few hours, and their width `bucket_s`.

    Raises:
        Unavailable: the store does not answer.
    """
    source, bucket = rollup, _bucket_of(call, rollup, parameters)
    if bucket < HOUR_S:
        source, bucket = facts, _bucket_of(call, facts, parameters)
    return {"points": call.query(source.points, fresh_s=3.0, bucket=bucket, **parameters), "bucket_s": bucket}


def _bucket_of(call: Call, source: Source, parameters: dict[str, Any]) -> int:
    [row] = call.query(source.extent, fresh_s=5.0, **parameters)
    return bucket_s(row["extent"] or 0)

"""Answer the page Tools: calls, errors and latency of each tool beside its baseline of the 7 days before."""

from typing import Any

from stepstream.analytics.tools import Calls, tool_alert
from stepstream.services.console.api.buckets import Source, points
from stepstream.services.console.api.scope import tenants
from stepstream.services.console.api.sql import between
from stepstream.services.console.endpoints import TENANT, Answer, Call, reads

_BASELINE_US = 7 * 86_400_000_000
_SINCE = "toStartOfHour(fromUnixTimestamp64Micro({since:Int64}, 'UTC'))"
_WHERE = (
    f"{TENANT} AND hour >= toStartOfHour(fromUnixTimestamp64Micro({{begin:Int64}}, 'UTC')) "
    "AND hour < fromUnixTimestamp64Micro({until:Int64}, 'UTC') "
    "AND ({agent:String} = '' OR agent = {agent:String}) AND ({model:String} = '' OR model = {model:String})"
)
_TOOLS = f"""
SELECT tool, sumIf(h.calls, hour >= {_SINCE}) AS calls, sumIf(h.failed, hour >= {_SINCE}) AS failed,
    sumIf(h.calls, hour < {_SINCE}) AS calls_before, sumIf(h.failed, hour < {_SINCE}) AS failed_before
FROM tool_hours AS h FINAL WHERE {_WHERE}
GROUP BY tool HAVING calls + calls_before > 0 ORDER BY calls DESC, tool LIMIT 200
"""
# The middle of a bin, whose edges grow by 10 %.
_BIN = "pow(1.1, {quantile}(bin, n) + 0.5)"
_LATENCY = f"""
SELECT tool, hour >= {_SINCE} AS now, {_BIN.format(quantile="quantileExactWeighted(0.5)")} AS p50,
    {_BIN.format(quantile="quantileExactWeighted(0.95)")} AS p95
FROM
(
    SELECT tool, hour, bin, n FROM (SELECT * FROM tool_hours FINAL WHERE {_WHERE})
    ARRAY JOIN ms.bin AS bin, ms.calls AS n
)
GROUP BY tool, now
"""
_ERRORS = f"""
SELECT tool, class, sum(n) AS calls
FROM
(
    SELECT tool, class, n FROM (SELECT * FROM tool_hours FINAL WHERE {_WHERE} AND hour >= {_SINCE})
    ARRAY JOIN error.class AS class, error.calls AS n
)
GROUP BY tool, class ORDER BY calls DESC LIMIT 500
"""
_OF_TOOL = f"{_WHERE} AND hour >= {_SINCE} AND tool = {{tool:String}}"
_ROLLUP = Source(
    f"SELECT toInt64(max(hour)) - toInt64(min(hour)) AS extent FROM tool_hours WHERE {_OF_TOOL}",
    f"""
SELECT toUnixTimestamp(toStartOfInterval(hour, toIntervalSecond({{bucket:UInt32}}))) * 1000 AS at,
    sum(h.calls) AS calls, sum(h.failed) AS failed
FROM tool_hours AS h FINAL WHERE {_OF_TOOL}
GROUP BY at ORDER BY at LIMIT 10000
""",
)
_OF_FACTS = (
    f"{TENANT} AND {between('opened_at')} AND has(call.tool, {{tool:String}}) "
    "AND ({agent:String} = '' OR agent = {agent:String}) AND ({model:String} = '' OR model = {model:String})"
)
_FACTS = Source(
    f"SELECT dateDiff('second', min(opened_at), max(opened_at)) AS extent FROM trajectories WHERE {_OF_FACTS}",
    f"""
SELECT toUnixTimestamp(toStartOfInterval(opened_at, toIntervalSecond({{bucket:UInt32}}))) * 1000 AS at,
    sum(countEqual(call.tool, {{tool:String}})) AS calls,
    sum(arrayCount((tool, error) -> tool = {{tool:String}} AND error != '', call.tool, call.error)) AS failed
FROM trajectories FINAL WHERE {_OF_FACTS}
GROUP BY at ORDER BY at LIMIT 10000
""",
)


@reads("/api/tools")
def tools(call: Call) -> Answer:
    """Return each tool's calls, errors by class and latency, with its alert; a chosen tool over time."""
    since, until = call.time_range("24h")
    of: dict[str, Any] = {
        "since": since,
        "until": until,
        "begin": since - _BASELINE_US,
        "agent": call.text("agent", longest=256),
        "model": call.text("model", longest=256),
    }
    latency: dict[tuple[str, bool], Any] = {
        (row["tool"], bool(row["now"])): row for row in call.query(_LATENCY, fresh_s=3.0, **of)
    }
    errors: dict[str, list[Any]] = {}
    for row in call.query(_ERRORS, fresh_s=3.0, **of):
        errors.setdefault(row["tool"], []).append({"class": row["class"], "calls": row["calls"]})
    rows = [
        {
            **row,
            **_alert(row),
            **_quantiles(latency.get((row["tool"], True)), ""),
            **_quantiles(latency.get((row["tool"], False)), "_before"),
            "errors": errors.get(row["tool"], []),
        }
        for row in call.query(_TOOLS, fresh_s=3.0, **of)
    ]
    tool = call.text("tool", longest=256)
    series = points(call, _ROLLUP, _FACTS, **of, tool=tool) if tool else {"points": [], "bucket_s": 0}
    return {
        "tenants": tenants(call),
        "tools": rows,
        "series": series["points"],
        "bucket_s": series["bucket_s"],
    }


def _alert(row: dict[str, Any]) -> Answer:
    alert = tool_alert(Calls(row["calls_before"], row["failed_before"]), Calls(row["calls"], row["failed"]))
    baseline = alert.baseline if row["calls_before"] else None
    return {"raised": alert.raised, "baseline": baseline, "low": alert.low, "quiet": alert.reason}


def _quantiles(row: Any, suffix: str) -> Answer:
    return {f"p50{suffix}": row["p50"] if row else None, f"p95{suffix}": row["p95"] if row else None}


ENDPOINTS = (tools,)

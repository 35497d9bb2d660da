"""Answer the page Tools: calls, errors and latency of each tool beside its baseline of the 7 days before."""

from typing import Any

from stepstream.analytics.tools import Calls, tool_alert
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
_SERIES = f"""
SELECT toUnixTimestamp(hour) * 1000 AS at, sum(h.calls) AS calls, sum(h.failed) AS failed
FROM tool_hours AS h FINAL WHERE {_WHERE} AND hour >= {_SINCE} AND tool = {{tool:String}}
GROUP BY at ORDER BY at LIMIT 10000
"""


@reads("/api/tools")
def tools(call: Call) -> Answer:
    """Return each tool's calls, errors by class and latency, with the alert of its baseline; a chosen tool by hour."""
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
    return {"tools": rows, "series": call.query(_SERIES, fresh_s=3.0, **of, tool=tool) if tool else []}


def _alert(row: dict[str, Any]) -> Answer:
    alert = tool_alert(Calls(row["calls_before"], row["failed_before"]), Calls(row["calls"], row["failed"]))
    baseline = alert.baseline if row["calls_before"] else None
    return {"raised": alert.raised, "baseline": baseline, "low": alert.low, "quiet": alert.reason}


def _quantiles(row: Any, suffix: str) -> Answer:
    return {f"p50{suffix}": row["p50"] if row else None, f"p95{suffix}": row["p95"] if row else None}


ENDPOINTS = (tools,)

"""Build the queries that find trajectories: newest first, in windows that widen until a page is full. Pure."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from stepstream.jobs.clickhouse.outcome import OUTCOME
from stepstream.services.console.endpoints import TENANT

Outcome = Literal["", "success", "failure", "none", "held", "error"]
OUTCOMES: tuple[Outcome, ...] = ("", "success", "failure", "none", "held", "error")

PAGE = 50
WINDOWS_DAYS = (1, 7, 90)
"""Widths of the windows of a search without a time range, in days before its end."""
_DAY_MS = 86_400_000
_TIME = re.compile("[0-9]{1,16}")
_WORD = re.compile(r"[^\W_]+")
_MAX_WORDS = 8
# The texts are JSON, in which the letter of an escaped line end or tab joins the word after it.
_ESCAPES = ("", "n", "t", "r")

_CONDITIONS = {
    "agent": "agent = {agent:String}",
    "model": "model = {model:String}",
    "environment": "environment = {environment:String}",
    "harness": "harness_version = {harness:String}",
    "split": "split = {split:String}",
    "task": "task_id = {task:String}",
    "group": "group_id = {group:String}",
    "id": "startsWith(trajectory_id, {id:String})",
    "version": "version_min <= {version:Int32} AND version_max >= {version:Int32}",
    "tool": "has(call.tool, {tool:String})",
    "reward_least": "reward >= {reward_least:Float64}",
    "reward_most": "reward <= {reward_most:Float64}",
}
_BY_OUTCOME: dict[Outcome, str] = {
    "success": f"{OUTCOME} = true",
    "failure": f"{OUTCOME} = false",
    "none": f"{OUTCOME} IS NULL",
    "held": "arrayExists(flag -> startsWith(flag, 'held:'), flags)",
    "error": "(errors > 0 OR arrayExists(error -> error != '', call.error))",
}


@dataclass(frozen=True, slots=True)
class Cursor:
    """Position after the last trajectory of a page, in the order of `search_query`."""

    opened_ms: int
    tenant: str
    trajectory_id: str

    @classmethod
    def parse(cls, text: str) -> "Cursor":
        """Return the cursor of its text.

        Raises:
            ValueError: the text is no cursor.
        """
        opened, tenant, trajectory_id = text.split("/", 2)
        if not _TIME.fullmatch(opened) or int(opened) >= 2**53:
            raise ValueError(f"{opened[:50]} is no time in milliseconds")
        return cls(int(opened), tenant.replace("%2F", "/").replace("%25", "%"), trajectory_id)

    def __str__(self) -> str:
        return f"{self.opened_ms}/{self.tenant.replace('%', '%25').replace('/', '%2F')}/{self.trajectory_id}"


@dataclass(frozen=True, slots=True)
class Search:
    """Conditions on trajectories; all of them hold for each result."""

    equal: dict[str, Any]
    """Values of conditions by name: keys of `CONDITIONS`."""
    outcome: Outcome = ""
    words: tuple[str, ...] = ()
    """Words of `words_of`; one of the trajectory's steps contains them all."""

    def conditions(self) -> list[str]:
        """Return the conditions in SQL, without the words."""
        unknown = self.equal.keys() - _CONDITIONS.keys()
        if unknown:
            raise KeyError(f"no condition is called {', '.join(sorted(unknown))}")
        outcome = _BY_OUTCOME.get(self.outcome)
        return [_CONDITIONS[name] for name in self.equal] + ([outcome] if outcome else [])


CONDITIONS = tuple(_CONDITIONS)
"""Names of the conditions."""


def words_of(text: str) -> tuple[str, ...]:
    """Return the words of a search text, in lower case as ClickHouse's `lower` gives them; at most 8."""
    return tuple(dict.fromkeys(word.encode().lower().decode() for word in _WORD.findall(text)))[:_MAX_WORDS]


def windows(since_ms: int | None, until_ms: int) -> Iterator[tuple[int, int]]:
    """Yield the begins of the windows to search in turn, with their widths in days; 0 days: the given begin.

    Args:
        since_ms: begin of the time range, in milliseconds since the Unix epoch; None: not given.
        until_ms: end of the range, or the time now if that is earlier.
    """
    if since_ms is not None:
        yield since_ms, 0
        return
    for days in WINDOWS_DAYS:
        yield max(0, until_ms - days * _DAY_MS), days


def search_query(
    search: Search, since_ms: int, until_ms: int, after: Cursor | None = None
) -> tuple[str, dict[str, Any]]:
    """Return the query of one window and its parameters, without the tenant's.

    It returns what the page shows (each column costs a read in each part), and one row more than a page if there are
    more.
    """
    conditions = [TENANT, *search.conditions()]
    parameters: dict[str, Any] = {**search.equal, "since": since_ms, "until": until_ms, "rows": PAGE + 1}
    if after is not None:
        conditions.append(
            "(opened_at, tenant, trajectory_id) < "
            "(fromUnixTimestamp64Milli({after_ms:Int64}), {after_tenant:String}, {after_id:String})"
        )
        parameters |= {
            "until": min(until_ms, after.opened_ms + 1),  # a bound that the primary key knows
            "after_ms": after.opened_ms,
            "after_tenant": after.tenant,
            "after_id": after.trajectory_id,
        }
    if search.words:
        conditions.append(_words_condition(len(search.words)))
        for number, word in enumerate(search.words):
            parameters[f"word_{number}"] = [escape + word for escape in _ESCAPES]
    query = f"""
SELECT tenant, trajectory_id, agent, model, version_min, version_max, success, reward, end, pending, steps, errors,
    flags, arrayDistinct(call.tool) AS tools, arrayCount(error -> error != '', call.error) AS failed_calls,
    toUnixTimestamp64Milli(opened_at) AS opened_ms
FROM trajectories FINAL
WHERE {" AND ".join(conditions)} AND opened_at >= fromUnixTimestamp64Milli({{since:Int64}})
    AND opened_at < fromUnixTimestamp64Milli({{until:Int64}})
ORDER BY toStartOfHour(opened_at) DESC, opened_at DESC, tenant DESC, trajectory_id DESC
LIMIT {{rows:UInt32}}
"""
    return query, parameters


def _words_condition(count: int) -> str:
    text = "lower(concat(messages, ' ', response))"
    words = " AND ".join(f"hasAnyTokens({text}, {{word_{number}:Array(String)}})" for number in range(count))
    return f"""(tenant, trajectory_id) IN
(
    SELECT tenant, trajectory_id FROM step_contents FINAL
    WHERE {TENANT} AND occurred_at >= fromUnixTimestamp64Milli({{since:Int64}}) AND {words}
)"""

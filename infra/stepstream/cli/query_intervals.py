"""Add to the rows of a view what SQL does not compute: bootstrap intervals over tasks, and p-values of F."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from stepstream.analytics import coin_flip, success
from stepstream.analytics.success import Attempts

Row = dict[str, Any]
Reader = Callable[[str, Sequence[str]], list[Row]]
"""Function that returns the rows of a view, by its name, grouped by these dimensions."""


def pass_rates(rows: list[Row], grain: Sequence[str], read: Reader) -> list[Row]:
    """Add the 95 % interval of pass@k and pass^k: a bootstrap of tasks with all their attempts."""
    tasks: dict[tuple[Any, ...], list[Attempts]] = defaultdict(list)
    for row in read("task_outcomes", [*grain, "task_id"]):
        tasks[tuple(row[name] for name in grain)].append(Attempts(row["attempts"], row["successes"]))
    return [row | _pass_intervals(tasks[tuple(row[name] for name in grain)], row) for row in rows]


def _pass_intervals(tasks: Sequence[Attempts], row: Row) -> Row:
    at, hat = success.pass_at_k(tasks, row["k"]), success.pass_hat_k(tasks, row["k"])
    few = f"fewer than 10 tasks ({at.tasks}): the interval is too narrow" if at.value is not None and at.few else ""
    return {
        "pass_at_k_low": at.low,
        "pass_at_k_high": at.high,
        "pass_hat_k_low": hat.low,
        "pass_hat_k_high": hat.high,
        "reason": row["reason"] or few,
    }


def coupling(rows: list[Row], grain: Sequence[str], read: Reader) -> list[Row]:
    """Add the p-value of F."""
    return [row | {"p": _p(row)} for row in rows]


def _p(row: Row) -> float | None:
    residual = 1 - sum(row[f"share_{name}"] or 0 for name in ("a", "b", "questions", "interaction"))
    if row["f"] is None:
        return None
    return coin_flip.f_test(row["share_interaction"], residual, row["prompts_a"], row["prompts_b"], row["questions"])[1]


INTERVALS: Mapping[str, Callable[[list[Row], Sequence[str], Reader], list[Row]]] = {
    "coin_flip": coupling,
    "pass_rates": pass_rates,
}

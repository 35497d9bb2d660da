"""The intervals of `stepstream query` can be computed at every grain that their view offers."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import click
import pytest

from stepstream.cli import query_results
from stepstream.cli.query_intervals import INTERVALS
from stepstream.cli.query_results import Statement, rows
from stepstream.config import Settings
from stepstream.jobs.clickhouse.views import ViewError, view

GRAINS = [
    (name, choice) for name in INTERVALS for choice in (None, *view(name).by, *view(name).choices, *view(name).keys)
]


@contextmanager
def empty_store(settings: Settings, limit: int) -> Iterator[Any]:
    """Yield a client whose every result is empty."""
    yield SimpleNamespace(
        query=lambda sql, parameters: SimpleNamespace(column_names=(), result_rows=[], named_results=lambda: iter(()))
    )


@pytest.mark.parametrize(("name", "choice"), GRAINS)
def test_every_choice_of_a_view_has_intervals(name: str, choice: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query_results, "_reader", empty_store)
    grain = view(name).grain if choice is None else tuple(dict.fromkeys((*view(name).keys, choice)))
    assert rows(Settings(), Statement("SELECT 1", view=name, grain=grain), 10).rows == []


def test_a_grain_without_intervals_is_a_clear_message(monkeypatch: pytest.MonkeyPatch) -> None:
    def without(found: Any, grain: Sequence[str], read: Any) -> Any:
        raise ViewError("view task_outcomes cannot be grouped by colour")

    monkeypatch.setattr(query_results, "_reader", empty_store)
    monkeypatch.setattr(query_results, "INTERVALS", {"pass_rates": without})
    with pytest.raises(click.ClickException, match="cannot be grouped by colour"):
        rows(Settings(), Statement("SELECT 1", view="pass_rates"), 10)

"""Define the views for people's dashboards: `NAME.sql` has the definition, `NAME.toml` its meaning and columns.

A definition is a ClickHouse SELECT with the parameters `since` and `until`, and with placeholders: `$by` is the grain,
`$by_task` the same without the family of tasks, `$view_NAME` another view at that grain, and `$NAME` the text of
`fragments/NAME.sql`, in which `$outcome` is that of `outcome.py`. Columns that the catalogue does not name stay inside.
`store migrate` creates each view at its default grain; `stepstream query --by` renders the same definition at another
one. Where the grain has all names of a cohort, `$by` of a view that reads `cohorts` has their digest, and the names are
joined at the end. Pure but for reading these files.
"""

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from string import Template
from textwrap import indent
from typing import Any

from stepstream.jobs.clickhouse.outcome import OUTCOME

DIMENSIONS = {
    "tenant": "Customer or organisation.",
    "agent": "Name of the agent.",
    "model": "Model of the first step; empty: none was named.",
    "environment": "Environment of the agent.",
    "harness_version": "Harness version of the first step.",
    "policy_version": "Newest policy version in the responses; -1: unknown.",
    "track": "Track that served the trajectory: `stable` or `canary`.",
    "split": "`train` or `eval`.",
    "task_family": "`task_id` up to its last `/`, `:` or `#`; without one, the whole of it.",
    "task_id": "Identity of the task.",
    "group_id": "Group of attempts that are compared.",
    "tool": "Name of the tool.",
    "error_class": "Class of the error.",
    "name": "Name of the reward component.",
    "reward_spec": "Name and digest of the reward specification.",
    "root": "Version that the learner's lineage began with.",
    "update": "Number of the update since the root, from 1.",
    "version": "Version of the model.",
    "hour": "Hour in which the trajectory began, UTC.",
    "day": "Day on which the trajectory began, UTC.",
}
"""Columns that a view may be grouped by, with their meaning."""
COHORT = ("tenant", "agent", "model", "environment", "harness_version", "policy_version", "track", "split")
"""Names of which `cohort_digest` is a digest: to group by it takes less time."""
_VIEW = re.compile(r"\$view_(\w+)")


class ViewError(ValueError):
    """Unknown view, or a grain that it does not have."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column that a view computes."""

    name: str
    type: str
    """ClickHouse type."""
    unit: str
    """Unit; empty: none."""
    meaning: str


@dataclass(frozen=True, slots=True)
class View:
    """A view with the parameters `since` and `until`."""

    name: str
    title: str
    meaning: str
    keys: tuple[str, ...]
    """Dimensions that every grain has: those that must not be pooled."""
    by: tuple[str, ...]
    """Further dimensions of the stable view."""
    choices: tuple[str, ...]
    """Further dimensions that `--by` may name."""
    series: tuple[str, ...]
    """Columns that identify a row together with the grain, as `k`."""
    columns: tuple[Column, ...]
    reads: tuple[str, ...]
    """Tables that it reads."""
    cached: bool
    """True: long ranges take over 500 ms at 100 million steps; a dashboard should cache the answer."""
    edges: tuple[str, ...]
    """Edge cases: one sentence or more each."""
    example: str
    """Query over the stable view, which a test runs."""
    definition: str
    """Template of the SELECT."""

    @property
    def grain(self) -> tuple[str, ...]:
        """Return the dimensions of the stable view."""
        return self.keys + self.by

    def sql(self, by: Sequence[str] | None = None) -> str:
        """Return its SELECT, grouped by `keys` and `by`; None: at its default grain.

        Raises:
            ViewError: it cannot be grouped so.
        """
        chosen = self.by if by is None else by
        possible = self.grain + self.choices
        if unknown := [name for name in chosen if name not in possible]:
            raise ViewError(
                f"view {self.name} cannot be grouped by {', '.join(unknown)}: choose of {', '.join(possible)}"
            )
        grain = list(dict.fromkeys((*self.keys, *chosen)))
        keyed = "cohorts" in self.reads and set(COHORT) <= set(grain)
        keys = grain
        if keyed:
            # A condition on a name reaches the table as a set of digests: ClickHouse's `enable_join_runtime_filters`.
            # That finds no range of a primary key that begins with the tenant: there, the tenant is a key too.
            ids = ["cohort_digest"] if "task_hours" in self.reads else ["tenant", "cohort_digest"]
            keys = [*ids, *(name for name in grain if name not in COHORT)]
        if "task_hours" in self.reads:  # such a view returns any name of its key
            keys = ["task_key" if name == "task_id" else name for name in keys]
        columns = ", ".join(keys)
        # A fragment may have others in it; a `$` of a regular expression stays.
        texts = {name: Template(text).safe_substitute(_fragments(), by=columns) for name, text in _fragments().items()}
        texts |= {f"view_{name}": view(name).sql(by) for name in _VIEW.findall(self.definition)}
        by_task = ", ".join(name for name in keys if name != "task_family")
        definition = Template(self.definition).substitute(texts, by=columns, by_task=by_task).strip()
        names = ", ".join([*grain, *(column.name for column in self.columns)])
        text = f"SELECT {names}\nFROM\n(\n{indent(definition, '    ')}\n)"
        if keyed:
            cohorts = _fragments()["cohorts"]
            text += f" AS figures\nINNER JOIN\n(\n    {cohorts}\n) AS cohorts USING ({', '.join(ids)})"
        return text


def views() -> Mapping[str, View]:
    """Return all views by name, sorted."""
    return _views()


def view(name: str) -> View:
    """Return a view.

    Raises:
        ViewError: there is none of this name.
    """
    if (found := views().get(name)) is None:
        raise ViewError(f"no view {name}: `stepstream query --list` lists them")
    return found


@cache
def _views() -> dict[str, View]:
    files = resources.files(__name__)
    names = sorted(file.name.removesuffix(".toml") for file in files.iterdir() if file.name.endswith(".toml"))
    return {
        name: _view(name, (files / f"{name}.toml").read_text(), (files / f"{name}.sql").read_text()) for name in names
    }


def _view(name: str, text: str, definition: str) -> View:
    values: dict[str, Any] = tomllib.loads(text)
    columns = tuple(
        Column(*(part.strip() for part in line.split("|", 3))) for line in values.pop("columns").strip().splitlines()
    )
    lists: dict[str, Any] = {
        key: tuple(values.pop(key, ())) for key in ("keys", "by", "choices", "series", "reads", "edges")
    }
    return View(
        name=name, columns=columns, definition=definition, cached=values.pop("cached", False), **lists, **values
    )


@cache
def _fragments() -> dict[str, str]:
    folder = resources.files(__name__) / "fragments"
    texts = {file.name.removesuffix(".sql"): file.read_text("utf-8").strip() for file in folder.iterdir()}
    return {name: Template(text).safe_substitute(outcome=OUTCOME) for name, text in texts.items()}

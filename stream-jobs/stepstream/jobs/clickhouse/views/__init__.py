"""Define the views for people's dashboards: `NAME.sql` has the definition, `NAME.toml` its meaning and columns.

A definition is a ClickHouse SELECT with the parameters `since` and `until`, and with placeholders: `$by` is the grain,
`$by_task` the same without the family of tasks, `$view_NAME` another view at that grain, and `$NAME` the text of
`fragments/NAME.sql`, in which `$outcome` is that of `outcome.py`, and `$signal_names` the feedback that the view reads.
Columns that the catalogue does not name stay inside.
`store migrate` creates each view at its default grain; `stepstream query --by` renders the same definition at another
one. Where the grain has all names of a cohort, `$by` of a view that reads `cohorts` has their digest, and the names are
joined at the end. Pure but for reading these files.

At its default grain, a `materialized` view returns the stored rows of cohorts at rest that lie in the range as a whole
(`../materialized_views.py`), and computes those of all others: its definition is the same for both. `$of_hours`,
`$of_times`, `$of_cohorts` and `$of_signals` are the conditions that choose the cohorts.
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
DIMENSION_TYPES = dict.fromkeys((*COHORT, "task_family"), "LowCardinality(String)") | {
    "policy_version": "Int32",
    "task_id": "String",
    "day": "Date",
}
"""ClickHouse types of the dimensions that `VIEW_of_cohorts` has."""
_VIEW = re.compile(r"\$view_(\w+)")


@dataclass(frozen=True, slots=True)
class _Scope:
    """Conditions, with AND, by which a definition reads some cohorts only."""

    hours: str = ""
    """On `hour`."""
    times: str = ""
    """The same on `opened_at`."""
    cohorts: str = ""
    """On `cohort_digest`."""

    @property
    def signals(self) -> str:
        """Return the condition on feedback: it is about trajectories of these cohorts."""
        if not (self.times or self.cohorts):
            return ""
        return (
            "AND trajectory_key IN (SELECT sipHash64(trajectory_id) FROM trajectories WHERE "
            "opened_at >= {since:DateTime('UTC')} AND opened_at < {until:DateTime('UTC')} "
            f"{self.times} {self.cohorts})"
        )


_ALL = _Scope()
_NOT_STORED = _Scope(
    "AND (hour < not_stored.2 OR hour >= not_stored.3)",
    "AND (opened_at < not_stored.2 OR opened_at >= not_stored.3)",
    "AND cohort_digest IN (SELECT arrayJoin(materialize(not_stored).1))",
)
_DUE = _Scope(cohorts="AND cohort_digest IN (SELECT arrayJoin(materialize(due).1).2)")


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
    signals: tuple[str, ...]
    """Names of the feedback that it reads."""
    cached: bool
    """True: long ranges take over 500 ms at 100 million steps; a dashboard should cache the answer."""
    materialized: bool
    """True: the rows of cohorts at rest are stored; `../materialized_views.py`."""
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

    @property
    def row_keys(self) -> tuple[str, ...]:
        """Return the columns that identify a row of a cohort, at the default grain."""
        return tuple(dict.fromkeys((*(name for name in self.grain if name not in COHORT), *self.series)))

    @property
    def stored(self) -> str:
        """Return the name of the table of its stored rows."""
        return f"{self.name}_of_cohorts"

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
        names = ", ".join([*grain, *(column.name for column in self.columns)])
        if self.materialized and set(grain) == set(self.grain):
            return self._stored_or_computed(names)
        if self._is_of_cohorts(grain):
            return self._named(names, self._figures(grain, _ALL))
        return f"SELECT {names}\nFROM\n(\n{indent(self._figures(grain, _ALL), '    ')}\n)"

    def cohort_rows(self) -> str:
        """Return a SELECT of `cohort_digest` and its columns, of some cohorts.

        `due.1` is an array of their (tenant, digest, first hour, last hour). All of their attempts are in the hours
        from `due.2` to `due.3`.
        """
        text = self._figures(self.grain, _DUE)
        for number, name in ((2, "since"), (3, "until")):
            text = text.replace(f"{{{name}:DateTime('UTC')}}", f"due.{number}")
        names = dict.fromkeys((*COHORT, *self.row_keys, *(column.name for column in self.columns)))
        return self._named(f"cohort_digest, {', '.join(names)}", text)

    def cohort_versions(self) -> str:
        """Return a SELECT of all cohorts with their times, and the version of their stored rows; 1970: none are."""
        signals = ""
        if self.signals:
            of_signals = Template(_fragments()["cohort_signals"]).safe_substitute(signal_names=self._signal_names)
            signals = f"\n            {of_signals}"
        return Template(_fragments()["cohort_versions"]).substitute(view=self.name, signals=signals)

    @property
    def _signal_names(self) -> str:
        return ", ".join(f"'{name}'" for name in self.signals)

    def _is_of_cohorts(self, grain: Sequence[str]) -> bool:
        return "cohorts" in self.reads and set(COHORT) <= set(grain)

    @property
    def _cohort_keys(self) -> tuple[str, ...]:
        """Return the columns by which a definition groups cohorts."""
        # A condition on a name reaches the table as a set of digests: ClickHouse's `enable_join_runtime_filters`.
        # That finds no range of a primary key that begins with the tenant: there, the tenant is a key too.
        return ("cohort_digest",) if "task_hours" in self.reads else ("tenant", "cohort_digest")

    def _named(self, names: str, figures: str) -> str:
        """Return a SELECT of figures by cohort with the names of the cohorts."""
        return (
            f"SELECT {names}\nFROM\n(\n{indent(figures, '    ')}\n) AS figures\n"
            f"INNER JOIN\n(\n    {_fragments()['cohorts']}\n) AS cohorts USING ({', '.join(self._cohort_keys)})"
        )

    def _stored_or_computed(self, names: str) -> str:
        """Return a SELECT of the stored rows of cohorts, and of the computed rows of all others."""
        not_stored = Template(_fragments()["not_stored"]).substitute(cohort_versions=self.cohort_versions())
        versions = Template(_fragments()["stored_versions"]).substitute(view=self.name)
        computed = self._named(names, self._figures(self.grain, _NOT_STORED))
        return f"""WITH
(
    {not_stored}
) AS not_stored
SELECT {names}
FROM
(
{indent(computed, "    ")}
    UNION ALL
    SELECT {names}
    FROM {self.stored}
    WHERE NOT is_marker AND cohort_digest NOT IN (SELECT arrayJoin(materialize(not_stored).1))
        AND (cohort_digest, version) IN
        (
            {indent(versions, "    ").strip()}
        )
)"""

    def _figures(self, grain: Sequence[str], scope: _Scope) -> str:
        """Return its definition at a grain."""
        keys = list(grain)
        if self._is_of_cohorts(grain):
            keys = [*self._cohort_keys, *(name for name in grain if name not in COHORT)]
        if "task_hours" in self.reads:  # such a view returns any name of its key
            keys = ["task_key" if name == "task_id" else name for name in keys]
        columns = ", ".join(keys)
        conditions = {
            "of_hours": scope.hours,
            "of_times": scope.times,
            "of_cohorts": scope.cohorts,
            "of_signals": scope.signals,
            "signal_names": self._signal_names,
        }
        # A fragment may have others in it; a `$` of a regular expression stays.
        texts = dict(_fragments())
        for _ in range(2):
            texts = {
                name: Template(text).safe_substitute({**texts, **conditions}, by=columns)
                for name, text in texts.items()
            }
        texts |= {f"view_{name}": self._part(view(name), grain, scope) for name in _VIEW.findall(self.definition)}
        by_task = ", ".join(name for name in keys if name != "task_family")
        return Template(self.definition).substitute(texts, by=columns, by_task=by_task).strip()

    def _part(self, other: "View", grain: Sequence[str], scope: _Scope) -> str:
        """Return the SELECT of another view that this one joins by `$by`."""
        return other._figures(grain, scope) if self._is_of_cohorts(grain) else other.sql(grain)


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
        key: tuple(values.pop(key, ())) for key in ("keys", "by", "choices", "series", "reads", "signals", "edges")
    }
    for flag in ("cached", "materialized"):
        values.setdefault(flag, False)
    return View(name=name, columns=columns, definition=definition, **lists, **values)


@cache
def _fragments() -> dict[str, str]:
    folder = resources.files(__name__) / "fragments"
    texts = {file.name.removesuffix(".sql"): file.read_text("utf-8").strip() for file in folder.iterdir()}
    return {name: Template(text).safe_substitute(outcome=OUTCOME) for name, text in texts.items()}

"""Verifiers by name: the built-in ones, and those of installed packages (entry points `stepstream.verifiers`)."""

import importlib
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from typing import Any

from stepstream.jobs.verifiers.base import Verifier
from stepstream.jobs.verifiers.options import BadOptions, Maker, Surroundings

GROUP = "stepstream.verifiers"

BUILT_IN = ("exact", "regex", "json_schema", "sql_state", "unit_tests", "judge", "process_reward")
"""Each is a module beside this one, with a `make`."""


def names() -> list[str]:
    """All that can be asked for."""
    return sorted({*BUILT_IN, *(point.name for point in entry_points(group=GROUP))})


def make(name: str, options: Mapping[str, Any], surroundings: Surroundings) -> Verifier:
    """The verifier of this name.

    Raises:
        BadOptions: there is none of this name, or its options make no sense.
    """
    return _maker(name)(options, surroundings)


def _maker(name: str) -> Maker:
    if name in BUILT_IN:
        found: Maker = importlib.import_module(f"stepstream.jobs.verifiers.{name}").make
        return found
    points = list(entry_points(group=GROUP, name=name))
    if not points:
        raise BadOptions(f"no verifier '{name}'; there are {', '.join(names())}")
    if len(points) > 1:
        packages = ", ".join(sorted(point.value for point in points))
        raise BadOptions(f"several packages have a verifier '{name}': {packages}")
    loaded: Callable[..., Verifier] = points[0].load()
    return loaded

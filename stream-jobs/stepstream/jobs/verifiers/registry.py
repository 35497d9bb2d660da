"""Create verifiers by name: built-in ones, and those of installed packages (entry points `stepstream.verifiers`)."""

import importlib
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from typing import Any

from stepstream.jobs.verifiers.base import Verifier
from stepstream.jobs.verifiers.options import InvalidOptions, VerifierContext, VerifierFactory

GROUP = "stepstream.verifiers"

BUILT_IN = {
    "exact": "stepstream.jobs.verifiers.exact",
    "regex": "stepstream.jobs.verifiers.regex",
    "json_schema": "stepstream.jobs.verifiers.json_schema",
    "sql_state": "stepstream.jobs.verifiers.sql_state",
    "unit_tests": "stepstream.jobs.verifiers.unit_tests",
    "judge": "stepstream.jobs.judging.judge",
    "process_reward": "stepstream.jobs.verifiers.process_reward",
}
"""Module of each name; it has a function `make`. Imported on first use: `judging` imports this package, never the
reverse.
"""


def make(name: str, options: Mapping[str, Any], context: VerifierContext) -> Verifier:
    """Create a verifier.

    Raises:
        InvalidOptions: the name is unknown, or its options are invalid.
    """
    return _factory(name)(options, context)


def names() -> list[str]:
    """Return all names, sorted."""
    return sorted({*BUILT_IN, *(point.name for point in entry_points(group=GROUP))})


def _factory(name: str) -> VerifierFactory:
    if name in BUILT_IN:
        factory: VerifierFactory = importlib.import_module(BUILT_IN[name]).make
        return factory
    points = list(entry_points(group=GROUP, name=name))
    if not points:
        raise InvalidOptions(f"no verifier '{name}'; there are {', '.join(names())}")
    if len(points) > 1:
        packages = ", ".join(sorted(point.value for point in points))
        raise InvalidOptions(f"several packages have a verifier '{name}': {packages}")
    loaded: Callable[..., Verifier] = points[0].load()
    return loaded

"""Skip tests whose tool is missing on this machine; fail them in CI.

Every skip has the form `needs TOOL: REMEDY`. conftest.py prints the skips of a run as one table, made by `summary`.
"""

import os
import shutil
import warnings
from collections import Counter
from collections.abc import Iterable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple, NoReturn

import pytest


class Tool(NamedTuple):
    """A tool that some tests run."""

    name: str
    programs: tuple[tuple[str, ...], ...]
    """Each is a list of alternatives; the tool is present if one of each list is on the PATH."""
    remedy: str


_TOOLS = {
    tool.name: tool
    for tool in (
        Tool("Chromium", (("chromium", "chromium-browser", "google-chrome"),), "apt-get install chromium"),
        Tool("curl", (("curl",),), "apt-get install curl"),
        Tool("Go", (("go",),), "install Go 1.26 or later"),
        Tool("Java", (("java",), ("javac",), ("mvn",)), "install a JDK 17 or later, and Maven"),
        Tool("jq", (("jq",),), "apt-get install jq"),
        Tool("kcat", (("kcat",),), "apt-get install kcat"),
        Tool("Node", (("node",), ("npm",)), "install Node.js 20 or later, with npm"),
        Tool("Prometheus", (("prometheus",), ("promtool",)), "apt-get install prometheus"),
        Tool("Rust", (("cargo",), ("rustc",)), "install Rust 1.85 or later, with Cargo"),
    )
}
_PACKAGES = {
    "presidio_analyzer": "the extra `detectors`: pip install 'stepstream[detectors]'",
    "reasoning_gym": "the extra `fleet`: pip install 'stepstream[fleet]'",
    "spacy": "the extra `detectors`: pip install 'stepstream[detectors]'",
    "vllm": "the extra `vllm`: pip install 'stepstream[vllm]'",
}


def require_tool(*names: str) -> str:
    """Return the path of the first tool's first program.

    Raises:
        Skipped: a program of one of the tools is not on the PATH; the reason names every tool that is missing.
        Failed: the same, in CI.
    """
    paths = {name: [_which(alternatives) for alternatives in _TOOLS[name].programs] for name in names}
    if missing := [name for name in names if None in paths[name]]:
        _missing(" and ".join(missing), "; ".join(_TOOLS[name].remedy for name in missing))
    return str(paths[names[0]][0])


def _which(alternatives: tuple[str, ...]) -> str | None:
    return next(filter(None, map(shutil.which, alternatives)), None)


def require_package(module: str) -> None:
    """Skip the test if an optional Python package is not installed; fail it in CI."""
    if find_spec(module) is None:
        _missing(module, _PACKAGES[module])


def import_package(module: str) -> None:
    """Import an optional Python package without its warnings; without it, as `require_package`."""
    require_package(module)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the first import compiles third-party code
        import_module(module)


def require_path(path: Path, remedy: str) -> Path:
    """Return `path`; skip the test if it does not exist, and fail it in CI."""
    if not path.exists():
        _missing(path.name, remedy)
    return path


def _missing(name: str, remedy: str) -> NoReturn:
    if os.environ.get("CI") == "true":
        pytest.fail(f"CI lacks {name}: {remedy}", pytrace=False)
    pytest.skip(f"needs {name}: {remedy}")


def summary(reasons: Iterable[str]) -> list[str]:
    """Return the lines of a table of skips: tests, reason, remedy; no lines without a skip.

    Args:
        reasons: one for each skipped test, `REASON: REMEDY`; the remedy may be missing.
    """
    counted = Counter(reason.removeprefix("Skipped: ") for reason in reasons)
    if not counted:
        return []
    rows = [("tests", "reason", "how to run them")]
    for reason, tests in sorted(counted.items(), key=lambda item: (-item[1], item[0])):
        why, _, remedy = reason.partition(": ")
        rows.append((str(tests), why, remedy))
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    return [f"{tests:>{widths[0]}}  {why:<{widths[1]}}  {remedy}".rstrip() for tests, why, remedy in rows]

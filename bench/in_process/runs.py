"""Keep finished runs in a file, one JSON object a line, so that a long bench can resume."""

import json
import platform
import subprocess
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

Run = dict[str, Any]


def read_runs(file: Path) -> list[Run]:
    """Return the finished runs; an incomplete last line is skipped."""
    runs = []
    for line in file.read_text().splitlines() if file.exists() else ():
        try:
            runs.append(json.loads(line))
        except ValueError:
            continue
    return runs


def finish(file: Path, wanted: Iterable[Mapping[str, Any]], work: Callable[[Mapping[str, Any]], Run]) -> list[Run]:
    """Run the wanted runs that the file does not have, and append each; return all wanted runs."""
    file.parent.mkdir(parents=True, exist_ok=True)
    wanted = list(wanted)
    done = read_runs(file)
    for key in wanted:
        if any(key.items() <= run.items() for run in done):
            continue
        run = {**key, **work(key)}
        done.append(run)
        with file.open("a") as lines:
            lines.write(json.dumps(run) + "\n")
    return [run for run in done if any(key.items() <= run.items() for key in wanted)]


@cache
def commit() -> str:
    """Return the commit of the code at the first call, or `unknown`."""
    result = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=Path(__file__).parent, capture_output=True, text=True, check=False
    )
    return result.stdout.strip() or "unknown"


def machine(runs: Iterable[Run]) -> str:
    """Describe the machine and commits of the runs."""
    commits = sorted({str(run.get("commit", "unknown")) for run in runs})
    return f"2 shared cores, CPython {platform.python_version()}, commit {', '.join(commits)}"

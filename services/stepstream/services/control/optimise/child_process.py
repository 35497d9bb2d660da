"""Run a search as a child process of the controller: read its task, end with the controller, write the result.

The task is a JSON object on standard input: the process id of the controller, what to search, calls and tokens that
were spent before, and a file descriptor for what this search spends. The result is one on standard output.
"""

import os
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import orjson

from stepstream.config import Settings
from stepstream.core.parent_death import die_with_parent
from stepstream.core.process import Fatal
from stepstream.services.control.optimise.records import Budget, Meter
from stepstream.services.control.optimise.shadow import ReplayUnavailable
from stepstream.services.control.search_process import write_spent


def run_search(settings: Settings, search: Callable[[Mapping[str, Any], Meter], Mapping[str, Any]], hint: str) -> None:
    """Search, with the limits of the settings. `hint`: what to check if the models do not answer.

    Raises:
        Fatal: the controller has ended.
    """
    output = os.dup(1)
    os.dup2(2, 1)  # output of libraries must not mix with the result
    task = orjson.loads(sys.stdin.buffer.read())
    die_with_parent()
    if os.getppid() != task["parent"]:
        raise Fatal("the controller has ended")
    budget = Budget(settings.optimise.calls, settings.optimise.tokens)
    meter = Meter(budget, task["calls"], task["tokens"], partial(write_spent, task["spent"]))
    try:
        result = search(task, meter)
    except ReplayUnavailable as error:
        result = {"fault": f"{error}; {hint}"}
    with os.fdopen(output, "wb") as file:
        file.write(orjson.dumps(result))

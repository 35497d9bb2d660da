"""Search a better harness version for the controller: `python -m stepstream.services.control.optimise`.

Reads a JSON object from standard input: the process id of the controller, tenant, agent, the agent's harness versions,
calls and tokens that were spent before, and a file descriptor for what this search spends. Writes one with the result
to standard output. The process ends with the controller, also if that is killed.
"""

import os
import sys
from dataclasses import asdict
from functools import partial

import orjson

from stepstream.config import Settings
from stepstream.core.parent_death import die_with_parent
from stepstream.core.process import Fatal, Stop, run
from stepstream.services.control.optimise.propose import propose_version
from stepstream.services.control.optimise.records import Budget, Meter
from stepstream.services.control.optimise.shadow import ReplayUnavailable
from stepstream.services.control.search_process import write_spent


def main(settings: Settings, _stop: Stop) -> None:
    """Search, with the limits of the settings."""
    output = os.dup(1)
    os.dup2(2, 1)  # output of libraries must not mix with the result
    task = orjson.loads(sys.stdin.buffer.read())
    die_with_parent()
    if os.getppid() != task["parent"]:
        raise Fatal("the controller has ended")
    budget = Budget(settings.optimise.calls, settings.optimise.tokens)
    meter = Meter(budget, task["calls"], task["tokens"], partial(write_spent, task["spent"]))
    try:
        result = asdict(propose_version(settings, task["versions"], task["tenant"], task["agent"], meter=meter))
    except ReplayUnavailable as error:
        result = {"fault": f"{error}; check optimise.gateway_url, .gateway_key and .reflection_url"}
    with os.fdopen(output, "wb") as file:
        file.write(orjson.dumps(result))


if __name__ == "__main__":
    run("control-search", main)

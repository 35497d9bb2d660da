"""Search a better harness version for the controller: `python -m stepstream.services.control.optimise`.

Reads a JSON object from standard input: the process id of the controller, tenant, agent, and the agent's harness
versions. Writes one with the result to standard output. The process ends with the controller, also if that is killed.
"""

import os
import sys
from dataclasses import asdict

import orjson

from stepstream.config import Settings
from stepstream.core.parent_death import die_with_parent
from stepstream.core.process import Fatal, Stop, run
from stepstream.services.control.optimise.propose import propose_version
from stepstream.services.control.optimise.shadow import ReplayUnavailable


def main(settings: Settings, _stop: Stop) -> None:
    """Search, with the limits of the settings."""
    output = os.dup(1)
    os.dup2(2, 1)  # output of libraries must not mix with the result
    task = orjson.loads(sys.stdin.buffer.read())
    die_with_parent()
    if os.getppid() != task["parent"]:
        raise Fatal("the controller has ended")
    try:
        result = asdict(propose_version(settings, task["versions"], task["tenant"], task["agent"]))
    except ReplayUnavailable as error:
        result = {"fault": f"{error}; check optimise.gateway_url, .gateway_key and .reflection_url"}
    with os.fdopen(output, "wb") as file:
        file.write(orjson.dumps(result))


if __name__ == "__main__":
    run("control-search", main)

"""Search a better harness version for the controller: `python -m stepstream.services.control.optimise`.

The process ends with the controller, also if that is killed.
"""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from stepstream.config import Settings
from stepstream.core.process import Stop, run
from stepstream.services.control.optimise.child_process import run_search
from stepstream.services.control.optimise.propose import propose_version
from stepstream.services.control.optimise.records import Meter


def main(settings: Settings, _stop: Stop) -> None:
    """Search, with the limits of the settings."""

    def search(task: Mapping[str, Any], meter: Meter) -> Mapping[str, Any]:
        return asdict(propose_version(settings, task["versions"], task["tenant"], task["agent"], meter=meter))

    run_search(settings, search, "check optimise.gateway_url, .gateway_key and .reflection_url")


if __name__ == "__main__":
    run("control-search", main)

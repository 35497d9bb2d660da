"""The demo's task with tools that take a while: a whole loop goes on as long as a test needs at part of a machine."""

import time
from pathlib import Path

from stepstream.services.fleet.environment import ToolResult
from stepstream.services.fleet.lookup import Lookup

FOLDER = Path(__file__).parent
"""What must be on the PYTHONPATH of a fleet that is to find this."""
CALL_S = 0.02
"""Seconds in which a fleet runs one tool call."""


class UnhurriedLookup(Lookup):
    """One attempt; calls are run one after the other, so the whole fleet makes at most 1 / `CALL_S` a second."""

    def call(self, tool: str, argument: str) -> ToolResult:
        """As the demo's, later."""
        time.sleep(CALL_S)
        return super().call(tool, argument)

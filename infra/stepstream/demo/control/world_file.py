"""Pass the state of the world to the agents by a file, which is replaced whole."""

import json
import os
from dataclasses import asdict
from pathlib import Path

from stepstream.demo.control.world import World


def write_world(file: Path, world: World) -> None:
    """Replace the file."""
    scratch = file.with_suffix(".new")
    scratch.write_text(json.dumps(asdict(world)), encoding="utf-8")
    os.replace(scratch, file)


def read_world(file: Path) -> World:
    """Return the state in the file."""
    fields = json.loads(file.read_text(encoding="utf-8"))
    return World(**fields | {"broken_tools": tuple(fields["broken_tools"])})

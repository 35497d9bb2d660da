"""What a checkpoint event says about how it came to be: code, settings and the machine's arithmetic."""

import subprocess
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import orjson
import torch

from stepstream.config import Learner
from stepstream.learner.model.distributed import current_ranks


@cache
def code_version() -> str:
    """Version of the package; in a checkout with the commit, and `.dirty` if files were changed since.

    Looked up once: that is the code that this process runs.
    """
    released = version("stepstream")
    here = Path(__file__)
    if not _git(here.parent, "ls-files", "--error-unmatch", here.name):
        return released
    commit = _git(here.parent, "rev-parse", "--short=12", "HEAD")
    changed = _git(here.parent, "status", "--porcelain", "--untracked-files=no")
    return f"{released}+g{commit}" + (".dirty" if changed else "")


def configuration_of(how: Learner) -> str:
    """The learner's settings and what else decides the last bits, as JSON.

    Also how many ranks trained; on CPUs that decides nothing.
    """
    return orjson.dumps(
        {
            "learner": how.model_dump(mode="json", exclude={"checkpoints"}),
            "arithmetic": arithmetic(how.device),
            "ranks": current_ranks().size,
        },
        option=orjson.OPT_SORT_KEYS,
    ).decode()


def arithmetic(device: str = "cpu") -> dict[str, str]:
    """What may change the last bits between machines: libraries, vector instructions, and what computes."""
    return {
        "torch": torch.__version__,
        "transformers": version("transformers"),
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "device": torch.cuda.get_device_name() if device == "cuda" else device,
    }


def recorded(configuration: str) -> tuple[Learner, dict[str, str]]:
    """The settings and the arithmetic that `configuration_of` wrote; settings that no longer exist are left out."""
    values: dict[str, Any] = orjson.loads(configuration)
    known = {name: value for name, value in values["learner"].items() if name in Learner.model_fields}
    return Learner.model_validate(known), values["arithmetic"]


def _git(folder: Path, *arguments: str) -> str:
    """What git answers; empty where it is missing, slow or refuses."""
    try:
        answer = subprocess.run(["git", "-C", folder, *arguments], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stdout.strip() if answer.returncode == 0 else ""

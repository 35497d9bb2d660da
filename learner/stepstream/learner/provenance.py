"""Describe a version's provenance: the learner's settings, its code, and the machine's arithmetic."""

import subprocess
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import orjson
import torch

from stepstream.config import LearnerSettings
from stepstream.learner.model.distributed import current_ranks


def configuration_of(config: LearnerSettings) -> str:
    """Return the learner's settings, the arithmetic and the number of ranks, as JSON.

    Together with the code they determine the last bits of the weights. On CPUs the number of ranks does not matter.
    """
    return orjson.dumps(
        {
            "learner": config.model_dump(mode="json", exclude={"checkpoints", "shared_memory_bytes", "signing_key"}),
            "arithmetic": arithmetic(config.device),
            "ranks": current_ranks().size,
        },
        option=orjson.OPT_SORT_KEYS,
    ).decode()


def parse_configuration(configuration: str) -> tuple[LearnerSettings, dict[str, str]]:
    """Return the settings and the arithmetic that `configuration_of` wrote, without settings that no longer exist.

    Versions from before presets had the values of `tiny` for the settings that they lack.
    """
    values: dict[str, Any] = orjson.loads(configuration)
    known = {name: value for name, value in values["learner"].items() if name in LearnerSettings.model_fields}
    known.setdefault("preset", "tiny")
    return LearnerSettings.model_validate(known), values["arithmetic"]


def arithmetic(device: str = "cpu") -> dict[str, str]:
    """Return the properties of this machine that may change the last bits: libraries, vector instructions, device."""
    return {
        "torch": torch.__version__,
        "transformers": version("transformers"),
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "device": torch.cuda.get_device_name() if device == "cuda" else device,
    }


@cache
def code_version() -> str:
    """Return the package's version; in a checkout with the commit, and `.dirty` if tracked files have changes.

    Cached, since the process keeps running the code that it loaded.
    """
    released = version("stepstream")
    this_file = Path(__file__)
    if not _git(this_file.parent, "ls-files", "--error-unmatch", this_file.name):
        return released
    commit = _git(this_file.parent, "rev-parse", "--short=12", "HEAD")
    changed = _git(this_file.parent, "status", "--porcelain", "--untracked-files=no")
    return f"{released}+g{commit}" + (".dirty" if changed else "")


def _git(folder: Path, *arguments: str) -> str:
    """Run git and return its output; an empty string if it is missing, slow or fails."""
    try:
        answer = subprocess.run(["git", "-C", folder, *arguments], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stdout.strip() if answer.returncode == 0 else ""

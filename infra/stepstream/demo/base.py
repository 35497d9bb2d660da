"""Create the demo's base model: a tiny policy that a warm start of seconds teaches the format and little more."""

import hashlib
import logging
from contextlib import suppress
from pathlib import Path

from stepstream.config import Settings

log = logging.getLogger(__name__)

NOISE = 0.18
"""Share of random choices in the demonstrations, so high that a model that imitates them mostly fails."""


def prepare(settings: Settings) -> Path:
    """Return the folder of the base model for these settings; create it if missing, which takes seconds on one core."""
    from stepstream.learner.tiny.warm_start import WarmStart, warm_start
    from stepstream.services.fleet.environment import demonstrations, load_environment

    config = WarmStart(threads=settings.learner.threads)
    recipe = f"{settings.fleet.environment} noise={NOISE} {config}"
    folder = settings.paths.data / "models" / f"base-{hashlib.sha256(recipe.encode()).hexdigest()[:12]}"
    if not folder.exists():
        log.info("warm-starting a base model in %s", folder)
        environment = load_environment(settings.fleet.environment)
        with suppress(FileExistsError):  # another process created the same model meanwhile
            warm_start(folder, demonstrations(environment, config.seed, NOISE), config)
    return folder

"""Load the demo's settings: the environment over the file of STEPSTREAM_CONFIG, by default the demo's profile."""

import os

from stepstream.config import Settings, load, settings_file
from stepstream.config.loader import CONFIG_VARIABLE


def demo_settings(profile: str = "demo") -> Settings:
    """Return the settings of `stepstream demo`, or of another demo by its profile.

    Raises:
        SettingsError: a setting is invalid.
    """
    if os.environ.get(CONFIG_VARIABLE):
        return load()
    return load(file=settings_file(profile))


def fresh_run(settings: Settings) -> Settings:
    """Return the settings with a new lineage of the model and a separate ledger."""
    ledger = settings.paths.data / "demo" / "ledger.jsonl"
    return settings.model_copy(
        update={
            "stack": settings.stack.model_copy(update={"new_lineage": True}),
            "fleet": settings.fleet.model_copy(update={"ledger": ledger}),
        }
    )

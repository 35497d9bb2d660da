"""The settings of a run: `demo.toml`, unless a file of one's own is named, under the environment."""

import os
from importlib.resources import as_file, files

from stepstream.config import Settings, load
from stepstream.config.loader import CONFIG_VARIABLE


def demo_settings() -> Settings:
    """What `stepstream demo` and `stepstream up` run with.

    Raises:
        SettingsError: a setting that cannot be used.
    """
    if os.environ.get(CONFIG_VARIABLE):
        return load()
    with as_file(files("stepstream.demo") / "demo.toml") as file:
        return load(file=file)


def fresh_run(settings: Settings) -> Settings:
    """The same settings for a run of its own: a new lineage of the model, a ledger of its own."""
    ledger = settings.paths.data / "demo" / "ledger.jsonl"
    return settings.model_copy(
        update={
            "stack": settings.stack.model_copy(update={"new_lineage": True}),
            "fleet": settings.fleet.model_copy(update={"ledger": ledger}),
        }
    )

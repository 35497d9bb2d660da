"""Load the demo's settings: the environment over the file of STEPSTREAM_CONFIG, which defaults to `demo.toml`."""

import os
from importlib.resources import as_file, files

from stepstream.config import Settings, load
from stepstream.config.loader import CONFIG_VARIABLE


def demo_settings(name: str = "demo.toml") -> Settings:
    """Return the settings of `stepstream demo` and `stepstream up`, or of the file `name` beside this module.

    Raises:
        SettingsError: a setting is invalid.
    """
    if os.environ.get(CONFIG_VARIABLE):
        return load()
    with as_file(files("stepstream.demo") / name) as file:
        return load(file=file)


def fresh_run(settings: Settings) -> Settings:
    """Return the settings with a new lineage of the model and a separate ledger."""
    ledger = settings.paths.data / "demo" / "ledger.jsonl"
    return settings.model_copy(
        update={
            "stack": settings.stack.model_copy(update={"new_lineage": True}),
            "fleet": settings.fleet.model_copy(update={"ledger": ledger}),
        }
    )

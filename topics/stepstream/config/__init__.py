"""The settings of every process: declared in `sections`, read by `loader`."""

from stepstream.config.loader import (
    SettingsError,
    effective,
    environment_of,
    load,
    load_with_origins,
    masked,
    unknown_variables,
    variable,
)
from stepstream.config.sections import Settings

__all__ = [
    "Settings",
    "SettingsError",
    "effective",
    "environment_of",
    "load",
    "load_with_origins",
    "masked",
    "unknown_variables",
    "variable",
]

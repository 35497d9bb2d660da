"""The settings of every process: declared in `sections`, read by `loader`.

Every setting of Stepstream, declared once: its name, type, default, unit and a sentence.

A field `bootstrap` of the section `kafka` is `kafka.bootstrap` in a TOML file and
`STEPSTREAM_KAFKA_BOOTSTRAP` in the environment; `loader.py` says which of them wins. The sections stand in the files
beside this one by what they are about; `settings.py` lists them all, in the order in which they are shown.
"""

from stepstream.config.base import Section
from stepstream.config.connections import ClickHouse, Kafka, Metrics, Paths, SchemaRegistry, Seal
from stepstream.config.ingest import Gateway, Otlp, Provider, Sdk
from stepstream.config.jobs import Alarms, Curate, Govern, Inspect, Jobs, Judge, Label, Verify
from stepstream.config.learner import Learner
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
from stepstream.config.settings import Settings
from stepstream.config.stack import Broker, Console, Demo, Fleet, Inference, Registry, Stack, Store

__all__ = [
    "Alarms",
    "Broker",
    "ClickHouse",
    "Console",
    "Curate",
    "Demo",
    "Fleet",
    "Gateway",
    "Govern",
    "Inference",
    "Inspect",
    "Jobs",
    "Judge",
    "Kafka",
    "Label",
    "Learner",
    "Metrics",
    "Otlp",
    "Paths",
    "Provider",
    "Registry",
    "SchemaRegistry",
    "Sdk",
    "Seal",
    "Section",
    "Settings",
    "SettingsError",
    "Stack",
    "Store",
    "Verify",
    "effective",
    "environment_of",
    "load",
    "load_with_origins",
    "masked",
    "unknown_variables",
    "variable",
]

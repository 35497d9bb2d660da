"""Every setting of Stepstream, declared once: its name, type, default, unit and a sentence.

A field `bootstrap` of the section `kafka` is `kafka.bootstrap` in a TOML file and
`STEPSTREAM_KAFKA_BOOTSTRAP` in the environment; `loader.py` says which of them wins. The sections stand in the files
beside this one by what they are about; `settings.py` lists them all, in the order in which they are shown.
"""

from stepstream.config.sections.agents import Demo, Fleet
from stepstream.config.sections.base import Section
from stepstream.config.sections.capture import Gateway, Otlp, Provider, Sdk
from stepstream.config.sections.embedded import Broker, Console, Registry, Stack, Store
from stepstream.config.sections.inference import Inference
from stepstream.config.sections.jobs import Alarms, Curate, Govern, Inspect, Jobs, Label
from stepstream.config.sections.judges import Judge, Verify
from stepstream.config.sections.learner import Learner
from stepstream.config.sections.settings import Settings
from stepstream.config.sections.shared import ClickHouse, Kafka, Metrics, Paths, SchemaRegistry, Seal

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
    "Stack",
    "Store",
    "Verify",
]

"""The settings of every process: declared in `sections`, read by `loader`.

Every setting of Stepstream, declared once: its name, type, default, unit and a sentence.

A field `bootstrap` of the section `kafka` is `kafka.bootstrap` in a TOML file and
`STEPSTREAM_KAFKA_BOOTSTRAP` in the environment; `loader.py` says which of them wins. The sections stand in the files
beside this one by what they are about; `settings.py` lists them all, in the order in which they are shown.
"""

from stepstream.config.base import Section
from stepstream.config.connections import (
    ClickHouseSettings,
    KafkaSettings,
    MetricsSettings,
    PathsSettings,
    SchemaRegistrySettings,
    SealSettings,
)
from stepstream.config.ingest import GatewaySettings, OtlpSettings, ProviderSettings, SdkSettings
from stepstream.config.jobs import (
    AlarmsSettings,
    CurateSettings,
    GovernSettings,
    InspectSettings,
    JobsSettings,
    JudgeSettings,
    LabelSettings,
    VerifySettings,
)
from stepstream.config.learner import LearnerSettings
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
from stepstream.config.stack import (
    BrokerSettings,
    ConsoleSettings,
    DemoSettings,
    FleetSettings,
    InferenceSettings,
    RegistrySettings,
    StackSettings,
    StoreSettings,
)

__all__ = [
    "AlarmsSettings",
    "BrokerSettings",
    "ClickHouseSettings",
    "ConsoleSettings",
    "CurateSettings",
    "DemoSettings",
    "FleetSettings",
    "GatewaySettings",
    "GovernSettings",
    "InferenceSettings",
    "InspectSettings",
    "JobsSettings",
    "JudgeSettings",
    "KafkaSettings",
    "LabelSettings",
    "LearnerSettings",
    "MetricsSettings",
    "OtlpSettings",
    "PathsSettings",
    "ProviderSettings",
    "RegistrySettings",
    "SchemaRegistrySettings",
    "SdkSettings",
    "SealSettings",
    "Section",
    "Settings",
    "SettingsError",
    "StackSettings",
    "StoreSettings",
    "VerifySettings",
    "effective",
    "environment_of",
    "load",
    "load_with_origins",
    "masked",
    "unknown_variables",
    "variable",
]

"""Declare every setting once, and load the settings of a process.

The field `bootstrap` of the section `kafka` is `kafka.bootstrap` in a TOML file and `STEPSTREAM_KAFKA_BOOTSTRAP` in the
environment. `loader` merges both over the defaults; `settings` lists the sections in the order in which they are shown.
docs/settings.md is generated from the declarations by `reference`.
"""

from stepstream.config.base import Section, is_loopback
from stepstream.config.connections import (
    ClickHouseSettings,
    HttpSettings,
    LargeRecordsSettings,
    MetricsSettings,
    PathsSettings,
    SchemaRegistrySettings,
    SealSettings,
    TopicsSettings,
    TracingSettings,
)
from stepstream.config.control import ControlSettings
from stepstream.config.ingest import GatewaySettings, ModelPriceSettings, OtlpSettings, ProviderSettings, SdkSettings
from stepstream.config.jobs import (
    AlarmsSettings,
    CurateSettings,
    GovernSettings,
    IdleTimeoutSettings,
    InspectSettings,
    JobsSettings,
    JudgeSettings,
    LabelSettings,
    VerifySettings,
)
from stepstream.config.kafka import KafkaSettings
from stepstream.config.learner import LearnerSettings
from stepstream.config.loader import (
    SettingsError,
    effective,
    environment_of,
    load,
    load_with_origins,
    masked,
    settings_file,
    unknown_variables,
    variable,
)
from stepstream.config.optimise import OptimiseSettings
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
    "ControlSettings",
    "CurateSettings",
    "DemoSettings",
    "FleetSettings",
    "GatewaySettings",
    "GovernSettings",
    "HttpSettings",
    "IdleTimeoutSettings",
    "InferenceSettings",
    "InspectSettings",
    "JobsSettings",
    "JudgeSettings",
    "KafkaSettings",
    "LabelSettings",
    "LargeRecordsSettings",
    "LearnerSettings",
    "MetricsSettings",
    "ModelPriceSettings",
    "OptimiseSettings",
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
    "TopicsSettings",
    "TracingSettings",
    "VerifySettings",
    "effective",
    "environment_of",
    "is_loopback",
    "load",
    "load_with_origins",
    "masked",
    "settings_file",
    "unknown_variables",
    "variable",
]

"""Combine all sections into `Settings`."""

from pathlib import Path

from stepstream.config.base import Section
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
from stepstream.config.ingest import GatewaySettings, OtlpSettings, SdkSettings
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
from stepstream.config.kafka import KafkaSettings
from stepstream.config.learner import LearnerSettings
from stepstream.config.optimise import OptimiseSettings
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


class Settings(Section):
    """Every setting, by section."""

    paths: PathsSettings = PathsSettings()
    kafka: KafkaSettings = KafkaSettings()
    topics: TopicsSettings = TopicsSettings()
    schema_registry: SchemaRegistrySettings = SchemaRegistrySettings()
    clickhouse: ClickHouseSettings = ClickHouseSettings()
    metrics: MetricsSettings = MetricsSettings()
    tracing: TracingSettings = TracingSettings()
    http: HttpSettings = HttpSettings()
    jobs: JobsSettings = JobsSettings()
    govern: GovernSettings = GovernSettings()
    inspect: InspectSettings = InspectSettings()
    seal: SealSettings = SealSettings()
    large_records: LargeRecordsSettings = LargeRecordsSettings()
    label: LabelSettings = LabelSettings()
    curate: CurateSettings = CurateSettings()
    alarms: AlarmsSettings = AlarmsSettings()
    judge: JudgeSettings = JudgeSettings()
    verify: VerifySettings = VerifySettings()
    store: StoreSettings = StoreSettings()
    registry: RegistrySettings = RegistrySettings()
    broker: BrokerSettings = BrokerSettings()
    gateway: GatewaySettings = GatewaySettings()
    otlp: OtlpSettings = OtlpSettings()
    sdk: SdkSettings = SdkSettings()
    inference: InferenceSettings = InferenceSettings()
    learner: LearnerSettings = LearnerSettings()
    fleet: FleetSettings = FleetSettings()
    optimise: OptimiseSettings = OptimiseSettings()
    console: ConsoleSettings = ConsoleSettings()
    control: ControlSettings = ControlSettings()
    demo: DemoSettings = DemoSettings()
    stack: StackSettings = StackSettings()

    @property
    def gateway_spool(self) -> Path:
        """Folder of the gateway's undelivered events, step indices and saved responses."""
        return self.gateway.spool or self.paths.data / "spool" / "gateway"

"""All sections together."""

from stepstream.config.base import Section
from stepstream.config.connections import ClickHouse, Kafka, Metrics, Paths, SchemaRegistry, Seal
from stepstream.config.ingest import Gateway, Otlp, Sdk
from stepstream.config.jobs import Alarms, Curate, Govern, Inspect, Jobs, Judge, Label, Verify
from stepstream.config.learner import Learner
from stepstream.config.stack import Broker, Console, Demo, Fleet, Inference, Registry, Stack, Store


class Settings(Section):
    """Everything, by section."""

    paths: Paths = Paths()
    kafka: Kafka = Kafka()
    schema_registry: SchemaRegistry = SchemaRegistry()
    clickhouse: ClickHouse = ClickHouse()
    metrics: Metrics = Metrics()
    jobs: Jobs = Jobs()
    govern: Govern = Govern()
    inspect: Inspect = Inspect()
    seal: Seal = Seal()
    label: Label = Label()
    curate: Curate = Curate()
    alarms: Alarms = Alarms()
    judge: Judge = Judge()
    verify: Verify = Verify()
    store: Store = Store()
    registry: Registry = Registry()
    broker: Broker = Broker()
    gateway: Gateway = Gateway()
    otlp: Otlp = Otlp()
    sdk: Sdk = Sdk()
    inference: Inference = Inference()
    learner: Learner = Learner()
    fleet: Fleet = Fleet()
    console: Console = Console()
    demo: Demo = Demo()
    stack: Stack = Stack()

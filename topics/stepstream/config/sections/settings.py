"""All sections together."""

from stepstream.config.sections.agents import Demo, Fleet
from stepstream.config.sections.base import Section
from stepstream.config.sections.capture import Gateway, Otlp, Sdk
from stepstream.config.sections.embedded import Broker, Console, Registry, Stack, Store
from stepstream.config.sections.inference import Inference
from stepstream.config.sections.jobs import Alarms, Curate, Govern, Inspect, Jobs, Label
from stepstream.config.sections.judges import Judge, Verify
from stepstream.config.sections.learner import Learner
from stepstream.config.sections.shared import ClickHouse, Kafka, Metrics, Paths, SchemaRegistry, Seal


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

"""The embedded stack: its supervisor, and the parts that it brings along."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from stepstream.config.sections.base import Port, Section


class Store(Section):
    """The job that inserts into ClickHouse, and the embedded store service."""

    host: str = Field("127.0.0.1", description="Address that the embedded store listens on.")
    port: Port = Field(8123, description="Port that the embedded store listens on.")
    batch_rows: int = Field(10_000, ge=1, description="Most rows in one insert.")
    batch_s: float = Field(0.5, gt=0, description="Longest wait, in seconds, to fill an insert.")


class Registry(Section):
    """The embedded schema registry service."""

    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: Port = Field(8081, description="Port to listen on.")
    write_timeout_s: float = Field(
        8.0, gt=0, description="Seconds after which a write that Kafka does not take is answered with an error."
    )


class Broker(Section):
    """The embedded Kafka broker."""

    host: str = Field("127.0.0.1", description="Address to listen on and to advertise.")
    port: Port = Field(9092, description="Port of the clients' listener.")
    controller_port: Port = Field(9093, description="Port of the KRaft controller's listener.")
    session_timeout_s: float = Field(
        9.0,
        ge=1,
        description="Seconds without a sign of life after which the controller takes the broker for dead, on a busy "
        "machine too; after kill -9 the broker serves again once they have passed.",
    )
    heap_mb: int = Field(256, ge=128, description="Java heap in MB.")
    home: Path | None = Field(
        None,
        description="Folder of Kafka's jars, shared by all data folders; default: the user's cache folder.",
    )


class Console(Section):
    """The console."""

    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: Port = Field(8088, description="Port to listen on.")


class Stack(Section):
    """The embedded stack: all processes on one machine under one supervisor."""

    workers: int = Field(1, ge=0, description="Inference workers; ports count up from inference.port.")
    metrics_port_base: Port = Field(9401, description="First of the metrics ports; each process gets the next one.")
    external: list[Literal["broker", "registry", "store"]] = Field(
        [],
        description="Parts that run elsewhere although their address is the embedded one; comma-separated.",
    )
    more: list[Literal["curate", "judge", "verify"]] = Field(
        [], description="Jobs that run only where they are asked for; comma-separated."
    )
    start_deadline_s: float = Field(120.0, gt=0, description="Seconds within which everything must be ready.")
    base_model: str = Field(
        "",
        description="Folder of the model to publish when there is none, or module:name of a function that makes it; "
        "empty: workers wait for `stepstream models publish`.",
    )
    new_lineage: bool = Field(
        False, description="Publish the base model again, as the root of a new lineage, although versions exist."
    )

"""The embedded stack: its supervisor, and the parts that it brings along.

The fleet of agents, and when a run of the loop has shown enough.

What generates the agents' replies.
"""

from pathlib import Path
from typing import Literal

from pydantic import Field

from stepstream.config.base import HttpAddress, Port, Section


class StoreSettings(Section):
    """The job that inserts into ClickHouse, and the embedded store service."""

    host: str = Field("127.0.0.1", description="Address that the embedded store listens on.")
    port: Port = Field(8123, description="Port that the embedded store listens on.")
    batch_rows: int = Field(10_000, ge=1, description="Most rows in one insert.")
    batch_s: float = Field(0.5, gt=0, description="Longest wait, in seconds, to fill an insert.")


class RegistrySettings(Section):
    """The embedded schema registry service."""

    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: Port = Field(8081, description="Port to listen on.")
    write_timeout_s: float = Field(
        8.0, gt=0, description="Seconds after which a write that Kafka does not take is answered with an error."
    )


class BrokerSettings(Section):
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


class ConsoleSettings(Section):
    """The console."""

    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: Port = Field(8088, description="Port to listen on.")


class StackSettings(Section):
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


class FleetSettings(Section):
    """The fleet of agents."""

    gateway_url: HttpAddress = Field("http://127.0.0.1:8080", description="Base address of the gateway.")
    environment: str = Field(
        "stepstream.services.fleet.lookup:Lookup", description="Environment class, as module:name."
    )
    agent: str = Field("lookup-agent", description="Agent name in the events.")
    model: str = Field("demo", description="Model that the agents call.")
    concurrency: int = Field(64, ge=1, description="Trajectories in flight at once.")
    group_size: int = Field(8, ge=1, description="Attempts at each training task.")
    temperature: float = Field(1.0, ge=0, description="Sampling temperature.")
    max_tokens: int = Field(24, ge=1, description="Most tokens of one response.")
    seed: int = Field(0, description="Seed from which tasks are drawn.")
    max_trajectories: int = Field(0, ge=0, description="Stop after this many trajectories; 0: go on until told.")
    max_ahead: int = Field(
        1,
        ge=-1,
        description="Versions of work that may be under way beyond the one that the learner collects; 0: agents wait "
        "while it trains (synchronous); -1: no limit.",
    )
    curriculum_spacing: int = Field(
        1,
        ge=1,
        le=1024,
        description="A task whose group taught the learner nothing (all its rewards equal) is attempted every second "
        "time it is drawn, after another such group every fourth, up to every so-many-th; 1: every time.",
    )
    gateway_deadline_s: float = Field(
        60.0, gt=0, description="Seconds for which an unreachable gateway is tried again before an attempt is given up."
    )
    shutdown_s: float = Field(
        2.0, ge=0, description="Seconds to finish trajectories when told to stop; the others are abandoned."
    )
    ledger: Path | None = Field(
        None, description="File in which the agents say what they sent; default: DATA/fleet/ledger.jsonl."
    )


class DemoSettings(Section):
    """When a run of the loop has shown what it should, and what its base model is made of."""

    target: float = Field(0.85, gt=0, lt=1, description="Held-out success at which the loop has done its work.")
    margin: float = Field(0.03, ge=0, description="How far training success must pass the target before it is tested.")
    held_out: int = Field(256, ge=200, description="Held-out tasks of each evaluation.")
    deadline_s: float = Field(240.0, gt=0, description="Seconds that the loop may take to reach the target.")
    window: int = Field(512, ge=1, description="Newest training trajectories whose success is watched.")
    drain_s: float = Field(60.0, gt=0, description="Seconds allowed for everything sent to arrive in the tables.")


class InferenceSettings(Section):
    """An inference worker."""

    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: Port = Field(8000, description="Port to listen on.")
    worker_id: str = Field("worker-0", description="Name on the worker-status topic.")
    engine: Literal["torch", "vllm"] = Field("torch", description="Engine that generates.")
    model: str = Field("demo", description="Name of the model to serve, as on the checkpoints topic.")
    tool_parser: str = Field(
        "call_line", description="How the model writes tool calls: call_line, call_json, or none for plain text."
    )
    max_batch: int = Field(128, ge=1, description="Sequences decoded together (torch engine).")
    max_model_len: int = Field(512, ge=16, description="Longest context in tokens.")
    threads: int = Field(1, ge=1, description="CPU threads of the engine.")
    status_every_s: float = Field(2.0, gt=0, description="Seconds between status events without a change.")
    vllm_port: int = Field(0, ge=0, le=65535, description="Port of the vLLM server behind this worker; 0: a free one.")
    vllm_args: list[str] = Field([], description="More arguments for vLLM's server.")

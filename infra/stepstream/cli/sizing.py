"""Estimate the workers, partitions, disks and memory that a fleet needs, from measured rates. Pure.

Every figure names the page of docs/measured that its rate is from. Rates are of one process on one shared core: check
the figures against lag and disk once the fleet runs.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

HEADROOM = 2.0
"""Factor on every rate: the same machine worked at half its rate on other days (docs/measured/govern.md)."""
_DAY_S = 86_400
_FEWEST_PARTITIONS = 8
_BYTES_A_WEIGHT = 16
_BYTES_A_SERVED_WEIGHT = 2


@dataclass(frozen=True, slots=True)
class Rate:
    """Measured rate of one process."""

    per_s: float
    unit: str
    memory_mb: int
    """Resident memory of a worker, in MB."""
    source: str


RATES = {
    "govern": Rate(6_392, "steps", 189, "stream.md, 52ac72a"),
    "label": Rate(8_285, "steps", 309, "stream.md, 52ac72a"),
    "measure": Rate(2_576, "trajectories", 163, "stream.md, 52ac72a"),
    "store-writer": Rate(2_226, "records", 352, "stream.md, 52ac72a"),
}
"""Rates of the quick run at 52ac72a, and the memory of the whole run at 1875733, which is larger."""
_GATEWAY_CALLS = 2_313.0
"""Streamed calls of a gateway per CPU-second (docs/measured/gateway.md, e413cfcc)."""
_BROKER_RECORDS = 52_371.0
"""Records of a step's size that one broker took in a second (docs/measured/ingest.md, 9aea60a)."""
STATE_BYTES = 1_310
"""State of `label` for each step that it keeps (docs/measured/label-length.md)."""
STEP_BYTES = 1_555
"""A step's record without compression (docs/measured/stream.md)."""
KAFKA_BYTES = 2.35
"""Bytes of all topics for each byte of a step, with producers' compression (docs/measured/disk.md)."""
CLICKHOUSE_BYTES = 219
"""Bytes of ClickHouse's tables for each step (docs/measured/disk.md)."""
_RECORDS_A_STEP, _RECORDS_A_TRAJECTORY = 2, 4
"""Records on the topics that `store` reads: governed steps and audit; label, closure, feedback and statistics."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """The work of a fleet of agents."""

    agents: int
    """Agents that call at the same time."""
    steps_per_s: float
    steps_per_trajectory: float
    step_bytes: int
    """Size of a step's record in Kafka."""
    days: float
    """Retention of topics and tables."""
    keep_days: float
    """`label.keep_days`."""
    replication: int
    connections: int
    """`http.connections` of a gateway."""
    model_parameters: float = 0.0
    """Weights of the trained model; 0: no figures of a model."""

    @property
    def trajectories_per_s(self) -> float:
        """Trajectories that end in a second."""
        return self.steps_per_s / self.steps_per_trajectory


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of a plan."""

    part: str
    amount: float
    unit: str
    reason: str
    """Formula, and the source of its rate."""


def plan_of(fleet: Fleet) -> list[Figure]:
    """Return the figures of a fleet, in the order of a step's way."""
    gateways = _gateways(fleet)
    workers = [_workers(name, rate, _load(name, fleet)) for name, rate in RATES.items()]
    return [
        gateways,
        _spool(fleet, gateways.amount),
        _partitions(max(figure.amount for figure in workers)),
        *_brokers(fleet),
        *workers,
        *(_memory(name, rate) for name, rate in RATES.items()),
        _state(fleet),
        _clickhouse(fleet),
        *_model(fleet),
    ]


def _load(job: str, fleet: Fleet) -> float:
    if job == "measure":
        return fleet.trajectories_per_s
    if job == "store-writer":
        return _RECORDS_A_STEP * fleet.steps_per_s + _RECORDS_A_TRAJECTORY * fleet.trajectories_per_s
    return fleet.steps_per_s


def _gateways(fleet: Fleet) -> Figure:
    by_rate = math.ceil(fleet.steps_per_s * HEADROOM / _GATEWAY_CALLS)
    by_connections = math.ceil(fleet.agents / fleet.connections)
    reason = (
        f"{fleet.steps_per_s:g} calls/s × {HEADROOM:g} over {_GATEWAY_CALLS:,.0f} streamed calls a core "
        f"(gateway.md, e413cfcc); {fleet.agents:,} agents over {fleet.connections:,} connections (http.connections)"
    )
    return Figure("gateway", max(1, by_rate, by_connections), "processes", reason)


def _spool(fleet: Fleet, gateways: float) -> Figure:
    gb = fleet.steps_per_s * 3_600 * fleet.step_bytes / gateways / 1e9
    reason = f"an hour without Kafka: {fleet.steps_per_s:g} steps/s × {fleet.step_bytes:,} bytes, by gateway"
    return Figure("gateway spool", _rounded(gb), "GB each", reason)


def _partitions(most_workers: float) -> Figure:
    amount = 2 ** math.ceil(math.log2(max(_FEWEST_PARTITIONS, 2 * most_workers)))
    reason = (
        f"twice the {most_workers:g} workers of the largest job, at least {_FEWEST_PARTITIONS}: it cannot change later"
    )
    return Figure("partitions", amount, "topics.partitions", reason)


def _brokers(fleet: Fleet) -> Iterator[Figure]:
    records = 2 * fleet.steps_per_s + 2 * fleet.trajectories_per_s
    amount = max(fleet.replication, math.ceil(records * fleet.replication * HEADROOM / _BROKER_RECORDS))
    reason = (
        f"{records:,.0f} records/s × {fleet.replication} copies × {HEADROOM:g} over {_BROKER_RECORDS:,.0f} a broker "
        f"(ingest.md, 9aea60a), at least {fleet.replication}"
    )
    yield Figure("broker", amount, "processes", reason)
    gb = KAFKA_BYTES * fleet.steps_per_s * _DAY_S * fleet.days * fleet.step_bytes * fleet.replication / amount / 1e9
    reason = (
        f"{KAFKA_BYTES:g} bytes in all topics for each of {fleet.step_bytes:,} bytes of a step (disk.md), "
        f"{fleet.days:g} days, {fleet.replication} copies, by broker"
    )
    yield Figure("broker disk", _rounded(gb), "GB each", reason)


def _workers(name: str, rate: Rate, load: float) -> Figure:
    reason = f"{load:,.4g} {rate.unit}/s × {HEADROOM:g} over {rate.per_s:,.0f} a worker ({rate.source})"
    return Figure(name, max(1, math.ceil(load * HEADROOM / rate.per_s)), "workers", reason)


def _memory(name: str, rate: Rate) -> Figure:
    reason = f"{HEADROOM:g} × {rate.memory_mb} MB resident (stream.md, 1875733)"
    return Figure(f"{name} memory", HEADROOM * rate.memory_mb, "MB each", reason)


def _state(fleet: Fleet) -> Figure:
    gb = fleet.steps_per_s * _DAY_S * fleet.keep_days * STATE_BYTES / 1e9
    reason = (
        f"{STATE_BYTES:,} bytes a step (label-length.md) for {fleet.keep_days:g} days (label.keep_days), of all workers"
    )
    return Figure("label state", _rounded(gb), "GB in all", reason)


def _clickhouse(fleet: Fleet) -> Figure:
    gb = fleet.steps_per_s * _DAY_S * fleet.days * CLICKHOUSE_BYTES / 1e9
    reason = f"{CLICKHOUSE_BYTES:,} bytes a step (disk.md) for {fleet.days:g} days, by replica"
    return Figure("clickhouse disk", _rounded(gb), "GB each", reason)


def _model(fleet: Fleet) -> Iterator[Figure]:
    if not fleet.model_parameters:
        return
    weights = fleet.model_parameters
    reason = f"{_BYTES_A_SERVED_WEIGHT} bytes a weight (bfloat16), without contexts"
    yield Figure("inference memory", _rounded(weights * _BYTES_A_SERVED_WEIGHT / 1e9), "GB each", reason)
    reason = (
        f"{_BYTES_A_WEIGHT} bytes a weight: weights, gradients and moments (Rajbhandari et al. 2020), over all GPUs, "
        "without activations; `stepstream plan-memory MODEL` counts every part, and adapters"
    )
    yield Figure("learner memory", _rounded(weights * _BYTES_A_WEIGHT / 1e9), "GB in all", reason)


def _rounded(amount: float) -> float:
    """Return an amount with three digits."""
    return float(f"{amount:.3g}")

"""List every metric that Stepstream's processes export. docs/metrics.md is generated from it.

Modules create their metrics from these definitions; no other module names a metric.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from stepstream.core.metrics import gateway, learner, services, stream_jobs
from stepstream.core.metrics.definition import Metric


@dataclass(frozen=True)
class MetricGroup:
    """Metrics that the same processes export."""

    title: str
    processes: tuple[str, ...]
    """Names as in `stepstream up`; `worker` and further workers of a job without their number."""
    metrics: tuple[Metric, ...]


_FOLDS = ("govern", "label", "measure", "store-writer", "verify", "judge", "inspect")

GROUPS = (
    MetricGroup("Stream jobs", (*_FOLDS, "watch", "curate"), stream_jobs.EVERY_JOB),
    MetricGroup("watch", ("watch",), stream_jobs.WATCH),
    MetricGroup("curate", ("curate",), stream_jobs.CURATE),
    MetricGroup("store-writer", ("store-writer",), stream_jobs.SINK),
    MetricGroup("Learner", ("learner",), learner.LEARNER),
    MetricGroup("Inference workers", ("worker",), services.INFERENCE),
    MetricGroup("Gateway", ("gateway",), gateway.GATEWAY),
    MetricGroup("Schema registry", ("registry",), services.REGISTRY),
    MetricGroup("Embedded store", ("store",), services.STORE),
    MetricGroup("Console", ("console",), services.CONSOLE),
    MetricGroup("Controller", ("control",), services.CONTROL),
    MetricGroup("Fleet", ("fleet",), services.FLEET),
    MetricGroup("Followed tables", (), services.TABLES),
    MetricGroup("Supervisor", ("up",), services.SUPERVISOR),
)


def exported_by(process: str) -> Iterator[Metric]:
    """Yield the metrics of a process from its start on. Followed tables add theirs when they are first read."""
    for group in GROUPS:
        if process in group.processes:
            yield from group.metrics


def every_metric() -> Iterator[Metric]:
    """Yield each metric once."""
    for group in GROUPS:
        yield from group.metrics


def metrics_page() -> str:
    """Return the text of docs/metrics.md: a table for each group."""
    lines = [_HEADER]
    for group in GROUPS:
        lines += ["", f"## {group.title}", "", _exporters(group.processes), ""]
        lines += ["| metric | type | unit | labels | meaning |", "|---|---|---|---|---|"]
        lines += [_row(metric) for metric in group.metrics]
    return "\n".join(lines) + "\n"


def _exporters(processes: Iterable[str]) -> str:
    names = ", ".join(f"`{process}`" for process in processes)
    return f"Exported by {names}." if names else "Exported by every process that reads a compacted topic."


def _row(metric: Metric) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    return f"| `{metric.name}` | {metric.kind} | {metric.unit} | {labels} | {metric.doc} |"


_HEADER = """# Metrics

Generated from the definitions in `core/stepstream/core/metrics` by `stepstream schemas generate`; do not edit.

Every process except the broker exports Prometheus metrics: [operations](operations.md#processes) says at which port.
Names follow [Prometheus' rules](https://prometheus.io/docs/practices/naming/): base units, and `_total` after counters.
A counter starts again at 0 with its process. A histogram has `_bucket`, `_sum` and `_count`. Beside these, processes
export `process_…` and `python_…` of Prometheus' client library, and a worker with vLLM `vllm:…` of its engine.

[Alerts](alerts.md) are built on them."""

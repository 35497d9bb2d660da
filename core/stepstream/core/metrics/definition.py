"""Define a Prometheus metric: name, unit, meaning and labels; `create` makes the object that a process counts with.

Names follow Prometheus' rules: base units at the end (`_seconds`, `_bytes`), and `_total` after a counter's unit.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics

# Otherwise each counter and histogram has a further gauge, `…_created`: nobody reads it, and it doubles their series.
disable_created_metrics()  # type: ignore[no-untyped-call]


@dataclass(frozen=True)
class Metric(ABC):
    """One metric of the catalogue."""

    kind: ClassVar[str]

    name: str
    """Name as Prometheus stores it; a histogram's without `_bucket`, `_sum` and `_count`."""
    unit: str
    """`seconds`, `bytes`, or the things counted."""
    doc: str
    """Meaning, in one sentence: Prometheus' HELP and docs/metrics.md show it."""
    labels: tuple[str, ...] = ()
    """Names of labels. A process that has seen no value of them exports the metric without a sample."""

    @abstractmethod
    def create(self, registry: CollectorRegistry = REGISTRY) -> Counter | Gauge | Histogram:
        """Return the object to count with, registered in `registry`."""


@dataclass(frozen=True)
class CounterMetric(Metric):
    """A number that only grows, and starts again at 0 with its process."""

    kind = "counter"

    def create(self, registry: CollectorRegistry = REGISTRY) -> Counter:
        """Return the counter, registered in `registry`."""
        return Counter(self.name, self.doc, self.labels, registry=registry)


@dataclass(frozen=True)
class GaugeMetric(Metric):
    """A value of this moment."""

    kind = "gauge"

    def create(self, registry: CollectorRegistry = REGISTRY) -> Gauge:
        """Return the gauge, registered in `registry`."""
        return Gauge(self.name, self.doc, self.labels, registry=registry)


@dataclass(frozen=True)
class HistogramMetric(Metric):
    """A distribution, counted by ranges."""

    kind = "histogram"

    buckets: tuple[float, ...] = field(kw_only=True)
    """Upper ends of the ranges, in the metric's unit."""

    def create(self, registry: CollectorRegistry = REGISTRY) -> Histogram:
        """Return the histogram, registered in `registry`."""
        return Histogram(self.name, self.doc, self.labels, registry=registry, buckets=self.buckets)

"""Count the fleet's attempts and model calls for Prometheus."""

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge

from stepstream.services.fleet.ledger import Attempt


class Metrics:
    """One fleet's metrics."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self._trajectories = Counter(
            "stepstream_fleet_trajectories",
            "Attempts that ended, by split and status.",
            ["split", "status"],
            registry=registry,
        )
        self._successes = Counter(
            "stepstream_fleet_successes", "Attempts that succeeded.", ["split"], registry=registry
        )
        self.steps = Counter("stepstream_fleet_steps", "Model calls that were answered.", registry=registry)
        self.running = Gauge("stepstream_fleet_running", "Attempts in flight.", registry=registry)
        self.held_back = Gauge(
            "stepstream_fleet_held_back", "1 while agents wait for the learner, else 0.", registry=registry
        )
        self.skipped = Counter(
            "stepstream_fleet_tasks_passed_over",
            "Draws of tasks that were skipped, because their last groups gave the learner no gradient.",
            registry=registry,
        )
        self.lineage_versions = Gauge(
            "stepstream_fleet_lineage_versions", "Versions published since the root of the lineage.", registry=registry
        )

    def count_attempt(self, attempt: Attempt) -> None:
        """Count an attempt that ended, and its success: an outcome of at least 1."""
        self._trajectories.labels(attempt.split, attempt.status).inc()
        if attempt.outcome is not None and attempt.outcome >= 1:
            self._successes.labels(attempt.split).inc()

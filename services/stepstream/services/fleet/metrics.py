"""Count the fleet's attempts and model calls for Prometheus."""

from prometheus_client import REGISTRY, CollectorRegistry

from stepstream.core.metrics import services
from stepstream.services.fleet.ledger import Attempt


class Metrics:
    """One fleet's metrics."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self._trajectories = services.FLEET_TRAJECTORIES.create(registry)
        self._successes = services.FLEET_SUCCESSES.create(registry)
        self.steps = services.FLEET_STEPS.create(registry)
        self.running = services.FLEET_RUNNING.create(registry)
        self.held_back = services.FLEET_HELD_BACK.create(registry)
        self.skipped = services.FLEET_PASSED_OVER.create(registry)
        self._draws = services.FLEET_DRAWS.create(registry)
        self._collapsed = services.FLEET_MIX_COLLAPSED.create(registry)
        self.lineage_versions = services.FLEET_LINEAGE_VERSIONS.create(registry)

    def count_draw(self, family: str, *, collapsed: bool) -> None:
        """Count a group's task by its family, and note whether the mix has collapsed."""
        self._draws.labels(family).inc()
        self._collapsed.set(collapsed)

    def count_attempt(self, attempt: Attempt) -> None:
        """Count an attempt that ended, and its success: an outcome of at least 1."""
        self._trajectories.labels(attempt.split, attempt.status).inc()
        if attempt.outcome is not None and attempt.outcome >= 1:
            self._successes.labels(attempt.split).inc()

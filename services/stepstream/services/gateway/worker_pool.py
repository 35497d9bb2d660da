"""Choose the inference worker of a call, and admit calls. Pure: time is passed in.

1. `WorkerPool.admit` rejects a call of a model that no worker serves, or whose workers are all at their limit.
2. `WorkerPool.choose` takes the worker that has the trajectory's prefix in its cache, unless that is away or
   overloaded; else the least loaded one.

Overload is relative, since a busy worker is no reason to compute a prefix again where all are busy. Envoy bounds a host
by the mean of all (`hash_balance_factor`), vLLM's and SGLang's routers by a factor and a number of requests over the
idlest; `overloaded` uses a factor of the mean and a number.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from zlib import crc32

from stepstream.services.gateway.errors import Overloaded, UnknownModel
from stepstream.topics.events import Track

FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 1.0
OVERLOAD_SLACK = 8
"""Calls beyond the factor of the mean that a worker may have before trajectories leave it: small loads vary much."""
_FULL = 1e9
"""Added to the rank of a full worker, so that it comes after all others."""
_NAMED_MODELS = 20
"""Models that an error message lists."""


@dataclass(slots=True)
class Upstream:
    """Load and health of one worker or provider, from the gateway's own calls. Times: seconds, monotonic clock."""

    url: str
    in_flight: int = 0
    chosen: int = 0
    failures: int = 0
    """Consecutive failures. Those during a pause count once: their calls began before it."""
    paused_until: float = 0.0
    fault: str = ""
    """The last failure; empty: the last call succeeded."""

    def succeeded(self) -> None:
        """Record an answer."""
        self.failures = 0
        self.paused_until = 0.0
        self.fault = ""

    def failed(self, fault: str, now: float) -> None:
        """Record a failure and pause: `FIRST_PAUSE_S`, doubled per further failure up to `LONGEST_PAUSE_S`."""
        self.fault = fault
        if now >= self.paused_until:
            self.paused_until = now + min(FIRST_PAUSE_S * 2**self.failures, LONGEST_PAUSE_S)
            self.failures += 1


@dataclass(frozen=True, slots=True)
class AnnouncedWorker:
    """A worker as its newest status describes it."""

    url: str
    model: str
    state: str
    ready: bool
    """True if it serves a version."""
    capacity: int = 0
    """Number of requests that it computes at once; 0: unknown."""
    tracks: Mapping[Track, str] = field(default_factory=dict)
    """Served name of each served track; empty: one version serves all tracks under the model's name."""


@dataclass(slots=True)
class Route:
    """Properties of a call that its worker depends on."""

    model: str = ""
    """Empty: any."""
    key: str = ""
    """Name of the trajectory; empty: none."""
    preferred: str = ""
    """Address of the worker that answered the trajectory's step before; empty: unknown. After the call, of this one."""
    track: Track = "stable"
    canary_version: int | None = None
    """The model's canary when the track was chosen; None: there was none."""
    served_name: str = ""
    """Name of the model at the worker that answered, if that is another."""
    attempts: int | None = None
    """Limit of attempts at workers; None: `gateway.upstream_attempts`."""
    is_last: bool = True
    """False: another target gets the call if this one refuses the connection, so that it is not retried."""


@dataclass(slots=True)
class Worker(Upstream):
    """One inference worker."""

    announced: AnnouncedWorker | None = None
    """None: only a setting names it, so that its model is unknown."""
    elsewhere: int = 0
    """Requests in flight that are not this gateway's, by its newest status."""
    weight: int = 1
    """Relative capacity among the workers of its model."""
    limit: int = 0
    """Load at which it is full."""

    @property
    def load(self) -> int:
        """Requests in flight, of all gateways."""
        return self.in_flight + self.elsewhere

    @property
    def capacity(self) -> int:
        """Number of requests that it computes at once; 0: unknown."""
        return self.announced.capacity if self.announced is not None else 0

    def served_name(self, route: Route) -> str:
        """Return the name that selects the route's track, if it is not the model's; empty: the model's."""
        name = self.announced.tracks.get(route.track, "") if self.announced is not None else ""
        return name if name != route.model else ""

    def serves(self, track: Track) -> bool:
        """Return True if it has a version for the track."""
        return self.announced is None or not self.announced.tracks or track in self.announced.tracks


class WorkerPool:
    """The inference workers: those that announce themselves, else those of the settings."""

    def __init__(self, urls: Sequence[str], max_queue: int, overload: float) -> None:
        """Begin with the workers of the settings.

        Args:
            urls: base addresses.
            max_queue: requests that may wait at a worker, beyond its capacity.
            overload: load relative to the mean above which trajectories leave a worker.
        """
        self._static = [Worker(url.rstrip("/"), limit=max_queue) for url in urls]
        self._by_url = {worker.url: worker for worker in self._static}
        self._ready: dict[str, list[Worker]] | None = None
        """Workers that serve a version, by model; None: nothing has announced itself."""
        self._all_ready: list[Worker] = []
        self._max_queue = max_queue
        self._overload = overload

    @property
    def upstreams(self) -> list[Worker]:
        """The workers in use."""
        if self._ready is None:
            return self._static
        return [worker for worker in self._by_url.values() if worker.announced is not None]

    def announce(self, workers: Iterable[AnnouncedWorker], models: Iterable[str]) -> None:
        """Replace the announced workers.

        Args:
            workers: all that are present.
            models: models that were served once, for errors; those of `workers` need not be repeated.
        """
        self._ready = {model: [] for model in models}
        present = set()
        for announced in workers:
            worker = self._by_url.setdefault(announced.url, Worker(announced.url))
            worker.announced = announced
            worker.limit = announced.capacity + self._max_queue
            present.add(announced.url)
            ready = self._ready.setdefault(announced.model, [])
            if announced.ready:
                ready.append(worker)
        for url, worker in list(self._by_url.items()):
            if url not in present:
                worker.announced = None
                worker.limit = self._max_queue
                # Calls in flight still count their worker's load if it returns.
                if not worker.in_flight and worker not in self._static:
                    del self._by_url[url]
        for ready in self._ready.values():
            is_known = all(worker.capacity for worker in ready)
            for worker in ready:
                worker.weight = worker.capacity if is_known else 1
        self._all_ready = [worker for ready in self._ready.values() for worker in ready]

    def served_models(self) -> list[str] | None:
        """Return the models that a worker serves; None: no worker has announced itself."""
        return None if self._ready is None else sorted(model for model, workers in self._ready.items() if workers)

    def note_load(self, url: str, requests_in_flight: int) -> None:
        """Take a worker's own count of its requests in flight."""
        worker = self._by_url.get(url)
        if worker is not None:
            worker.elsewhere = max(0, requests_in_flight - worker.in_flight)

    def candidates(self, model: str) -> Sequence[Worker]:
        """Return the workers that serve a model; empty: any model."""
        if self._ready is None:
            return self._static
        return self._ready.get(model, ()) if model else self._all_ready

    def admit(self, model: str, now: float) -> None:
        """Check that a call may begin.

        Raises:
            UnknownModel: no worker serves the model or has served it.
            Overloaded: every worker of the model is at its limit.
        """
        if self._ready is not None and model and model not in self._ready:
            raise UnknownModel(f"no inference worker serves the model '{model}'; {self._models()}")
        workers = self.candidates(model)
        for worker in workers:
            if worker.load < worker.limit and worker.paused_until <= now:
                return
        taking = [worker for worker in workers if worker.paused_until <= now]
        if taking:
            load, limit = sum(worker.load for worker in taking), sum(worker.limit for worker in taking)
            raise Overloaded(
                f"all {len(taking)} workers of the model '{model}' are full: {load} requests of at most {limit} are in "
                "flight; retry later, add workers, or raise gateway.max_queue_per_worker"
            )

    def choose(self, now: float, route: Route) -> Worker | None:
        """Return the worker for a call; None: all that serve its model and track are paused or absent."""
        best: Worker | None = None
        best_rank = 0.0
        preferred: Worker | None = None
        total = weight = 0
        for worker in self.candidates(route.model):  # each line counts: this runs for every worker at every call
            if worker.paused_until > now or not worker.serves(route.track):
                continue
            load = worker.in_flight + worker.elsewhere
            total += load
            weight += worker.weight
            if worker.url == route.preferred:
                preferred = worker
            rank = load / worker.weight + (_FULL if load >= worker.limit else 0.0)
            if best is None or rank < best_rank or (rank == best_rank and _is_before(worker, best, route.key)):
                best, best_rank = worker, rank
        if preferred is not None and preferred is not best and not self.overloaded(preferred, total, weight):
            best = preferred
        if best is not None:
            best.chosen += 1
        return best

    def overloaded(self, worker: Worker, load: int, weight: int) -> bool:
        """Return True if one more call would exceed the worker's limit, or its bound relative to the others.

        Args:
            worker: one of the available workers.
            load: requests in flight at all available workers.
            weight: sum of their weights.
        """
        bound = self._overload * (load + 1) * worker.weight / weight + OVERLOAD_SLACK
        return worker.load + 1 > bound or worker.load >= worker.limit

    def has_track(self, model: str, track: Track) -> bool:
        """Return True if a worker serves the model on the track."""
        return any(worker.serves(track) for worker in self.candidates(model))

    def next_try(self, now: float, route: Route) -> float:
        """Return the time at which the first pause ends; without workers, a short time from now."""
        workers = [worker for worker in self.candidates(route.model) if worker.serves(route.track)]
        return min((worker.paused_until for worker in workers), default=now + FIRST_PAUSE_S)

    def faults(self, route: Route) -> str:
        """Return the fault of each worker of a model, for an error message."""
        workers = self._static
        if self._ready is not None:
            workers = [each for each in self.upstreams if not route.model or each.announced.model == route.model]  # type: ignore[union-attr]
        if not workers:
            return f"none is alive; {self._models()}"
        return "; ".join(f"{worker.url}: {_fault(worker, route.track)}" for worker in workers)

    def _models(self) -> str:
        served = self.served_models() or []
        more = f" and {len(served) - _NAMED_MODELS} more" if len(served) > _NAMED_MODELS else ""
        return f"served models: {', '.join(served[:_NAMED_MODELS]) or 'none'}{more}"


def _is_before(worker: Worker, other: Worker, key: str) -> bool:
    """Decide between equal loads: for a trajectory by a hash, the same at every gateway; else in turn."""
    if not key:
        return worker.chosen < other.chosen
    seed = crc32(key.encode())
    return crc32(worker.url.encode(), seed) < crc32(other.url.encode(), seed)


def _fault(worker: Worker, track: Track) -> str:
    if worker.announced is not None and not worker.announced.ready:
        return f"serves no version yet ({worker.announced.state})"
    if not worker.serves(track):
        return f"does not serve the track {track}"
    return worker.fault or "no answer"

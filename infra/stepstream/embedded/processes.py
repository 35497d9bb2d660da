"""Declare the parts of the stack: each process with its prerequisites, readiness check and ports, and each action.

An action is a step between processes. It runs once, in the stack's own process, when its prerequisites are ready.
"""

import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from graphlib import CycleError, TopologicalSorter

from stepstream.config import Settings, variable
from stepstream.embedded import actions, broker
from stepstream.embedded.addresses import reachable, worker_addresses
from stepstream.embedded.errors import StackError, UnknownProcess
from stepstream.embedded.ports import Port
from stepstream.embedded.ready import HttpReady, KafkaReady, Ready, RegistryReady, StoreReady


@dataclass(frozen=True)
class Process:
    """One process of the stack."""

    name: str
    module: str
    after: tuple[str, ...]
    """Parts that must be ready before it starts."""
    ready: Ready
    ports: tuple[Port, ...]
    environment: dict[str, str] = field(default_factory=dict)
    ends: bool = False
    """True if it may end with status 0 because its work is done. Any other end is a crash and causes a restart."""
    external: bool = False
    """True if it runs elsewhere: the stack waits for it but does not start it."""
    essential: bool = True
    """True if events, learning or answers to agents need it. `up` goes on without any other that fails."""
    optional: bool = False
    """True if it runs only where `stack.more` or the caller names it."""

    @property
    def command(self) -> list[str]:
        """Command line of a process that dies with the supervisor."""
        return [sys.executable, "-m", "stepstream.embedded.child", self.module]


@dataclass(frozen=True)
class Action:
    """One step that the stack itself runs while it starts."""

    name: str
    after: tuple[str, ...]
    """Parts that must be ready before it runs."""
    run: Callable[[Settings], None]
    serves: tuple[str, ...] = ()
    """Processes that need it: it runs if one of them is selected. Empty: it runs if all of `after` are selected."""


Part = Process | Action


def stack_parts(settings: Settings) -> list[Part]:
    """Return every process and action, in a valid order of starting, for settings of `resolve_addresses`.

    Metrics ports count up from `stack.metrics_port_base` in this order.
    """
    external = settings.stack.external
    metrics = _Metrics(settings)
    registry, store = settings.registry, settings.store
    log, model = ("topics",), ("topics", "base-model")
    first_canary = settings.stack.workers - settings.stack.canary_workers
    workers = [
        _http(
            f"worker-{i}",
            "services.inference",
            model,
            # Without a base model, a worker is healthy only after `stepstream models publish`.
            f"{url}/{'health' if settings.stack.base_model else 'metrics'}",
            Port(settings.inference.host, settings.inference.port + i, f"worker-{i}", "STEPSTREAM_INFERENCE_PORT"),
            environment={
                variable("inference", "port"): str(settings.inference.port + i),
                variable("inference", "worker_id"): f"worker-{i}",
                **({variable("inference", "tracks"): "canary"} if i >= first_canary else {}),
            },
        )
        for i, url in enumerate(worker_addresses(settings))
    ]
    names = tuple(worker.name for worker in workers)
    gateway, console = settings.gateway, settings.console
    parts: list[Part] = [
        Process(
            "broker",
            "stepstream.embedded.broker",
            (),
            KafkaReady(settings.kafka),
            tuple(broker.ports(settings)),
            external="broker" in external,
        ),
        Process(
            "registry",
            "stepstream.services.registry",
            ("broker",),
            RegistryReady(settings.schema_registry),
            (Port(registry.host, registry.port, "registry", "STEPSTREAM_REGISTRY_PORT"),),
            external="registry" in external,
        ),
        Process(
            "store",
            "stepstream.services.store",
            (),
            StoreReady(settings.clickhouse),
            (Port(store.host, store.port, "store", "STEPSTREAM_STORE_PORT"),),
            external="store" in external,
        ),
        Action("topics", ("broker", "registry"), actions.apply_topics),
        Action("tables", ("store",), actions.migrate_store),
        metrics.process("govern", "jobs.govern", log, job=True),
        metrics.process("label", "jobs.label", log, job=True),
        metrics.process("measure", "jobs.measure", log, job=True),
        metrics.process("watch", "jobs.watch", log, job=True, essential=False),
        metrics.process("store-writer", "jobs.sink", (*log, "tables"), job=True),
        Action("base-model", log, actions.publish_base, serves=("learner", *names)),
        metrics.process("learner", "learner", model),
        *workers,
        _http(
            "gateway",
            "services.gateway",
            (*log, *names),
            f"http://{reachable(gateway.host)}:{gateway.port}/health",
            Port(gateway.host, gateway.port, "gateway", "STEPSTREAM_GATEWAY_PORT"),
        ),
        _http(
            "console",
            "services.console",
            ("tables",),
            f"http://{reachable(console.host)}:{console.port}/health",
            Port(console.host, console.port, "console", "STEPSTREAM_CONSOLE_PORT"),
            essential=False,
        ),
        metrics.process("control", "services.control", (*log, "tables"), essential=False, optional=True),
        metrics.process("fleet", "services.fleet", ("gateway", *names), ends=True, essential=False, optional=True),
        *(
            metrics.process(name, f"jobs.{name}", log, job=True, essential=False, optional=True)
            for name in ("curate", "inspect", "judge", "verify")
        ),
    ]
    return [*parts, *_further_workers(settings, parts, metrics)]


def _further_workers(settings: Settings, parts: Sequence[Part], metrics: "_Metrics") -> list[Process]:
    """Return the workers of `stack.scale` beside the first one of each job.

    Raises:
        StackError: an entry names no job or no number of workers.
    """
    jobs = scalable_jobs(parts)
    workers = []
    for entry in settings.stack.scale:
        name, _, number = entry.partition("=")
        if name not in jobs or not number.isdecimal() or int(number) < 1:
            raise StackError(f"stack.scale: '{entry}' is not JOB=WORKERS; jobs with workers: {', '.join(jobs)}")
        job = jobs[name]
        for instance in range(2, int(number) + 1):
            module = job.module.removeprefix("stepstream.")
            worker = metrics.process(f"{name}-{instance}", module, job.after, job=True)
            own = worker.environment | {variable("jobs", "instance"): str(instance)}
            workers.append(replace(worker, environment=own, essential=job.essential))
    return workers


def scalable_jobs(parts: Iterable[Part]) -> dict[str, Process]:
    """Return the first worker of each job that may have several, by name."""
    processes = (part for part in parts if isinstance(part, Process))
    return {
        process.name: process
        for process in processes
        if ".jobs." in process.module
        and process.name not in ("watch", "curate")  # run alone
        and variable("jobs", "instance") not in process.environment
    }


def default_names(settings: Settings, parts: Iterable[Part]) -> list[str]:
    """Return the processes that run if nobody names any: all but the optional ones that `stack.more` lacks."""
    processes = (part for part in parts if isinstance(part, Process))
    return [process.name for process in processes if not process.optional or process.name in settings.stack.more]


def select_parts(parts: Sequence[Part], names: Collection[str] | None = None) -> list[Part]:
    """Return the named processes (`worker`: all workers; None: all) and the actions whose prerequisites they include.

    Nothing waits for a part that is not selected.

    Raises:
        UnknownProcess: no process has one of the names.
    """
    processes = {part.name: part for part in parts if isinstance(part, Process)}
    if names is None:
        chosen = set(processes)
    else:
        chosen = set(names) - {"worker"}
        if "worker" in names:
            chosen |= {name for name in processes if name.startswith("worker-")}
        if unknown := sorted(chosen - set(processes)):
            raise UnknownProcess(f"no such process: {', '.join(unknown)}; there are {', '.join(processes)}")
    for part in parts:
        is_needed = isinstance(part, Action) and (not part.serves or bool(chosen.intersection(part.serves)))
        if is_needed and chosen.issuperset(part.after):
            chosen.add(part.name)
    return [part for part in parts if part.name in chosen]


def start_order(parts: Sequence[Part]) -> list[list[str]]:
    """Return the names by level of starting: a part's prerequisites are all in earlier levels.

    Raises:
        StackError: the prerequisites form a cycle.
    """
    names = {part.name for part in parts}
    sorter = TopologicalSorter({part.name: names.intersection(part.after) for part in parts})
    result = []
    try:
        sorter.prepare()
    except CycleError as error:
        raise StackError(f"processes wait for each other: {' -> '.join(error.args[1])}") from None
    while sorter.is_active():
        level = sorted(sorter.get_ready())
        result.append(level)
        sorter.done(*level)
    return result


class _Metrics:
    """Allocates one metrics port for each process."""

    def __init__(self, settings: Settings) -> None:
        self._host = settings.metrics.host
        self._next = settings.stack.metrics_port_base

    def process(
        self,
        name: str,
        module: str,
        after: tuple[str, ...],
        job: bool = False,
        ends: bool = False,
        essential: bool = True,
        optional: bool = False,
    ) -> Process:
        """Return a process whose readiness shows at its own metrics port."""
        port, self._next = self._next, self._next + 1
        return Process(
            name,
            f"stepstream.{module}",
            after,
            HttpReady(
                f"http://{reachable(self._host)}:{port}/metrics", contains="\nstepstream_job_ready 1" if job else ""
            ),
            (Port(self._host, port, name, "STEPSTREAM_STACK_METRICS_PORT_BASE"),),
            {variable("metrics", "port"): str(port)},
            ends,
            essential=essential,
            optional=optional,
        )


def _http(
    name: str,
    module: str,
    after: tuple[str, ...],
    url: str,
    port: Port,
    environment: dict[str, str] | None = None,
    essential: bool = True,
) -> Process:
    return Process(name, f"stepstream.{module}", after, HttpReady(url), (port,), environment or {}, essential=essential)

"""Run the Faust worker of one job: take whole fetches, process them in a thread.

Faust balances partitions among workers. `transport.py` reads. The job's processor has all effects, the commit of
offsets among them. It runs in one thread, so that a slow broker or a long batch does not block Faust's event loop.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import uvloop

from stepstream.config import Settings
from stepstream.core.process import Fatal, Stop, collect_garbage_rarely, serve_metrics
from stepstream.jobs.runtime import metrics
from stepstream.jobs.runtime.faust_app import build_app, quiet_libraries
from stepstream.jobs.runtime.fetch import Fetch, GroupMember
from stepstream.jobs.runtime.log_reader import LogReader
from stepstream.jobs.runtime.processor import consumer_group
from stepstream.jobs.runtime.retry import Cancelled
from stepstream.jobs.runtime.transaction import Refused
from stepstream.jobs.runtime.transport import Transport
from stepstream.topics.access import wait_for_access

log = logging.getLogger(__name__)

_TICK_S = 0.5
_STOP_S = 5.0


class Processor(Protocol):
    """Processes fetches of raw records. All methods run in one thread, one at a time."""

    def open(self, partitions: Iterable[int], member: GroupMember) -> None:
        """Open the assigned partitions; offsets are committed in the name of `member`."""
        ...

    def close(self, partitions: Iterable[int]) -> None:
        """Release revoked partitions."""
        ...

    def process(self, fetch: Fetch) -> None:
        """Process a fetch; its effect is durable and its offsets are committed on return.

        Raises:
            Refused: the partitions have, or will have, another owner.
        """
        ...

    def tick(self) -> None:
        """Take decisions in time; called twice a second; raises as `process`."""
        ...

    def shut_down(self) -> None:
        """Release all resources."""
        ...


def run_job(
    settings: Settings,
    stop: Stop,
    name: str,
    topics: Sequence[str],
    make: Callable[[Settings, Callable[[], bool]], Processor],
    *,
    batch: int | None = None,
    within_s: float | None = None,
) -> None:
    """Run a job's process until `stop` is set; arguments as in `JobWorker`.

    Raises:
        KafkaUnavailable: no broker answered within the configured deadline.
        Fatal: this process cannot recover.
    """
    metrics.READY.set(0)
    serve_metrics(settings.metrics, metrics.readiness_fault)
    quiet_libraries()
    wait_for_access(settings.kafka, name, lambda: bool(stop))
    if stop:
        return

    collect_garbage_rarely()

    async def work() -> None:
        worker = JobWorker(
            settings,
            stop,
            name,
            topics,
            make,
            batch=batch or settings.jobs.batch,
            within_s=settings.jobs.within_s if within_s is None else within_s,
        )
        await worker.run()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(work())


class JobWorker:
    """One process of a job."""

    def __init__(
        self,
        settings: Settings,
        stop: Stop,
        name: str,
        topics: Sequence[str],
        make: Callable[[Settings, Callable[[], bool]], Processor],
        *,
        batch: int,
        within_s: float,
    ) -> None:
        """Prepare a worker; `run` starts it.

        Args:
            settings: settings of the process.
            stop: set when the process must end.
            name: name of the job; its consumer group is `stepstream-NAME`.
            topics: input topics; those with the same number of partitions are balanced together.
            make: builds the processor from the settings and a function that is true once the work is cancelled.
            batch: largest number of records in a fetch.
            within_s: longest time for which records wait at the broker to fill a fetch, in seconds.
        """
        self._settings, self._stop, self._name = settings, stop, name
        self._revoking = False
        self._fault: BaseException | None = None
        self._assigned: set[int] = set()
        self._refused_at_s: float | None = None
        self._recovering: asyncio.Future[None] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._processor = make(settings, lambda: bool(stop) or self._revoking)
        self._reader = LogReader(settings.kafka, consumer_group(name), lambda: bool(stop))
        self._app = build_app(settings, name)
        self._app.transport = self._transport = Transport(
            self._app.conf.broker_consumer,
            self._app,
            deliver=self._process,
            start_positions=self._reader.start_positions,
            max_records=batch,
            within_s=within_s,
            prefix=settings.kafka.prefix,
        )
        for topic in topics:
            self._app.topics.add(self._app.topic(settings.kafka.prefix + topic))
        self._app.on_partitions_assigned.connect(self._on_assigned)
        self._app.on_partitions_revoked.connect(self._on_revoked)

    async def run(self) -> None:
        """Process batches until `stop` is set.

        Raises:
            Fatal: this process cannot recover. Only offsets with durable results are committed.
        """
        started = asyncio.ensure_future(self._app.start())
        try:
            while not self._stop and self._fault is None:
                await asyncio.sleep(_TICK_S)
                if self._app.crashed:
                    raise Fatal(f"Faust stopped: {self._app.crash_reason!r}")
                if started.done():
                    started.result()
                if _coordination_ended(self._app):
                    raise Fatal("the Kafka client's group coordination failed, see above: restart this process")
                if _fetcher_ended(self._app):
                    raise Fatal("Faust's fetcher has ended, and no record would be read: restart this process")
                timeout_s = self._settings.jobs.session_timeout_s
                if self._refused_at_s is not None and time.monotonic() > self._refused_at_s + timeout_s:
                    raise Fatal("the group refused this worker and did not take it in again: restart this process")
                if self._assigned:
                    await self._guarded(self._processor.tick)
            if self._fault is not None:
                raise self._fault
        finally:
            await self._end(started)

    async def _end(self, started: "asyncio.Future[None]") -> None:
        metrics.READY.set(0)
        self._stop.set()
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(_STOP_S):
                # Finish the current fetch before Faust releases the partitions.
                await loop.run_in_executor(self._thread, _nothing)
                await self._app.stop()
        except TimeoutError:
            log.warning("Faust did not stop within %g s: Kafka delivers uncommitted records again", _STOP_S)
        except Exception as error:
            log.warning("could not stop Faust: %r", error)
        started.cancel()
        await loop.run_in_executor(self._thread, self._processor.shut_down)
        self._thread.shutdown()
        self._reader.close()

    async def _process(self, fetch: Fetch) -> None:
        """Process a fetch. A rebalance cancels the wait for it, not the work: the partitions are closed after it."""
        await asyncio.shield(asyncio.ensure_future(self._process_one(fetch)))

    async def _process_one(self, fetch: Fetch) -> None:
        if self._fault is not None or self._stop or self._revoking:
            return  # not committed: Kafka delivers it again, here or to another worker
        began = time.monotonic()
        if await self._guarded(self._processor.process, fetch):
            self._observe(fetch, began)

    async def _guarded(self, call: Callable[..., None], *arguments: Any) -> bool:
        """Run a call in the processor's thread. Return False if it was cancelled or raised; `run` raises the error."""
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, call, *arguments)
        except Cancelled:
            return False
        except Refused as error:
            # aiokafka learns it from its next heartbeat and joins the group again; then `_on_assigned` is called.
            log.warning("gave up all partitions: %s", error)
            metrics.READY.set(0)
            self._refused_at_s = time.monotonic()
            return False
        except Exception as error:
            if self._fault is None:
                self._fault = error
            return False
        return True

    def _observe(self, fetch: Fetch, began: float) -> None:
        if not fetch.records:
            return
        metrics.BATCH_SECONDS.observe(time.monotonic() - began)
        for topic, records in Counter(record.topic for record in fetch.records).items():
            metrics.RECORDS_IN.labels(topic).inc(records)
        newest_ms = max(record.timestamp_ms for record in fetch.records)
        metrics.LAG_SECONDS.set(max(0.0, time.time() - newest_ms / 1000))

    async def _on_assigned(self, _app: Any, /, *arguments: Any, **_: Any) -> None:
        [assigned] = arguments
        self._assigned = {tp.partition for tp in assigned}
        self._revoking, self._refused_at_s = False, None
        member = self._transport.member()
        # Not awaited: rebuilding state takes longer than a rebalance may.
        self._recovering = asyncio.ensure_future(self._recover(self._assigned, member))

    async def _recover(self, partitions: set[int], member: GroupMember) -> None:
        if await self._guarded(self._processor.open, partitions, member) and not self._revoking:
            log.info("ready with partitions %s", sorted(partitions))
            metrics.READY.set(1)

    async def _on_revoked(self, _app: Any, /, *arguments: Any, **_: Any) -> None:
        [revoked] = arguments
        metrics.READY.set(0)
        self._revoking = True
        await self._guarded(self._processor.close, {tp.partition for tp in revoked})


def _coordination_ended(app: Any) -> bool:
    """Return True if aiokafka's coordination task has ended, as after a starting broker lists no brokers.

    Faust does not notice it. Without the task, no partition would be assigned again.
    """
    thread = getattr(app.consumer, "_thread", None) if app.consumer is not None else None
    client = getattr(thread, "_consumer", None)
    task = getattr(getattr(client, "_coordinator", None), "_coordination_task", None)
    return task is not None and task.done()


def _fetcher_ended(app: Any) -> bool:
    """Return True if Faust's fetcher has ended. Faust does not notice it if its task was cancelled."""
    fetcher = vars(app).get("_fetcher")  # Faust creates it when the app starts
    return fetcher is not None and fetcher.started and fetcher._shutdown.is_set()


def _nothing() -> None:
    """Do nothing: queued behind the current call, this ends after it."""

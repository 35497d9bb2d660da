"""Run the Faust worker of one job: read batches, process them in a thread, commit after their effect.

Faust reads, balances partitions among workers and commits. The job's processor has all effects. It runs in one thread,
so that a slow broker or a long batch does not block Faust's event loop. Batches are read without Faust's automatic
acknowledgement, which would also acknowledge a batch whose processing raised.
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
from stepstream.core.process import Fatal, Stop, serve_metrics
from stepstream.jobs.runtime import metrics
from stepstream.jobs.runtime.faust_app import build_app, quiet_libraries
from stepstream.jobs.runtime.record import Record
from stepstream.jobs.runtime.retry import Cancelled
from stepstream.topics.client import wait_for_kafka

log = logging.getLogger(__name__)

_TICK_S = 0.25
_STOP_S = 5.0


class Processor(Protocol):
    """Processes batches of raw records. All methods run in one thread, one at a time."""

    def open(self, partitions: Iterable[int]) -> None:
        """Open assigned partitions."""
        ...

    def close(self, partitions: Iterable[int]) -> None:
        """Release revoked partitions."""
        ...

    def process(self, records: Sequence[Record]) -> None:
        """Process a batch; its effect is durable on return."""
        ...

    def tick(self) -> None:
        """Take decisions in time; called four times a second."""
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
    serve_metrics(settings.metrics)
    quiet_libraries()
    wait_for_kafka(settings.kafka, lambda: bool(stop))
    if stop:
        return

    async def work() -> None:
        worker = JobWorker(
            settings,
            stop,
            name,
            topics,
            make,
            batch=batch or settings.jobs.batch,
            within_s=within_s or settings.jobs.within_s,
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
            batch: largest number of records in a batch.
            within_s: longest time to fill a batch, in seconds.
        """
        self._settings, self._stop, self._name = settings, stop, name
        self._batch, self._within_s = batch, within_s
        self._revoking = False
        self._fault: BaseException | None = None
        self._assigned: set[int] = set()
        self._recovering: asyncio.Future[None] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._processor = make(settings, lambda: bool(stop) or self._revoking)
        self._app = build_app(settings, name)
        source = self._app.topic(
            *topics, key_type=bytes, value_type=bytes, key_serializer="raw", value_serializer="raw", allow_empty=True
        )
        self._app.agent(source, name=name)(self._consume)
        self._app.on_partitions_assigned.connect(self._on_assigned)
        self._app.on_partitions_revoked.connect(self._on_revoked)

    async def run(self) -> None:
        """Process batches until `stop` is set.

        Raises:
            Fatal: this process cannot recover. Only offsets with durable results are committed.
        """
        started = asyncio.ensure_future(self._app.start())
        next_tick = time.monotonic()
        try:
            while not self._stop and self._fault is None:
                await asyncio.sleep(0.05)
                if self._app.crashed:
                    raise Fatal(f"Faust stopped: {self._app.crash_reason!r}")
                if started.done():
                    started.result()
                if _coordination_ended(self._app):
                    raise Fatal("the Kafka client's group coordination failed, see above: restart this process")
                if time.monotonic() >= next_tick and self._assigned:
                    next_tick = time.monotonic() + _TICK_S
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
                # Finish and commit the current batch before Faust releases the partitions.
                await loop.run_in_executor(self._thread, _nothing)
                await asyncio.sleep(0)
                await self._app.consumer.commit()
                await self._app.stop()
        except TimeoutError:
            log.warning("Faust did not stop within %g s: Kafka delivers uncommitted records again", _STOP_S)
        except Exception as error:
            log.warning("could not stop Faust: %r", error)
        started.cancel()
        await loop.run_in_executor(self._thread, self._processor.shut_down)
        self._thread.shutdown()

    async def _consume(self, stream: Any) -> None:
        async for events in stream.noack_take(self._batch, within=self._within_s):
            if self._fault is not None or self._stop or self._revoking:
                continue  # not acknowledged: Kafka delivers it again, here or to another worker
            generation = self._app.consumer_generation_id
            current = [event for event in events if event.message.generation_id == generation]
            began = time.monotonic()
            if await self._guarded(self._processor.process, [_record(event.message) for event in current]):
                for event in current:
                    await stream.ack(event)
                self._observe(current, began)

    async def _guarded(self, call: Callable[..., None], *arguments: Any) -> bool:
        """Run a call in the processor's thread. Return False if it was cancelled or raised; `run` raises the error."""
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, call, *arguments)
        except Cancelled:
            return False
        except Exception as error:
            if self._fault is None:
                self._fault = error
            return False
        return True

    def _observe(self, events: Sequence[Any], began: float) -> None:
        metrics.BATCH_SECONDS.observe(time.monotonic() - began)
        for topic, records in Counter(event.message.topic for event in events).items():
            metrics.RECORDS_IN.labels(topic).inc(records)
        newest = max((event.message.timestamp for event in events), default=time.time())
        metrics.LAG_SECONDS.set(max(0.0, time.time() - newest))

    async def _on_assigned(self, _app: Any, /, *arguments: Any, **_: Any) -> None:
        [assigned] = arguments
        self._assigned = {tp.partition for tp in assigned}
        self._revoking = False
        # Not awaited: rebuilding state takes longer than a rebalance may.
        self._recovering = asyncio.ensure_future(self._recover(self._assigned))

    async def _recover(self, partitions: set[int]) -> None:
        if await self._guarded(self._processor.open, partitions) and not self._revoking:
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


def _record(message: Any) -> Record:
    return Record(
        message.topic, message.partition, message.offset, int(message.timestamp * 1000), message.key, message.value
    )


def _nothing() -> None:
    """Do nothing: queued behind the current call, this ends after it."""

"""Read whole fetches through Faust: its membership in the consumer group, without its streams and its commits.

Faust's stream takes 117 µs for each record. This transport hands over one event for each fetch instead. It reads
committed records only. It starts at positions that the caller gives, since aiokafka does not wait for the offsets of
pending transactions.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Set
from typing import Any, ClassVar, cast

import faust
from aiokafka.errors import ConsumerStoppedError
from faust.transport.drivers import aiokafka as driver
from faust.types import TP
from yarl import URL

from stepstream.core.tracing import HEADER
from stepstream.jobs.runtime import metrics
from stepstream.jobs.runtime.fetch import Fetch, GroupMember
from stepstream.jobs.runtime.fetch_requests import FetchRequests
from stepstream.jobs.runtime.record import Record, TopicPartition

_WAIT_S = 1.0
"""Longest wait for records; a position that moves without records is reported this late."""
_IDLE_REQUEST_S = 5.0
"""Longest wait at the broker of a request for all partitions; the broker answers at once when there is a record."""
_FULL_FETCH_BYTES = 1 << 20
"""Size at which the broker answers at once a worker that fills its fetches."""

Deliver = Callable[[Any], Awaitable[None]]
StartPositions = Callable[[Set[TopicPartition]], Mapping[TopicPartition, int]]


class Transport(driver.Transport):
    """aiokafka's driver with whole fetches."""

    Consumer: ClassVar[Any]

    def __init__(
        self,
        url: list[URL],
        app: faust.App,
        *,
        deliver: Deliver,
        start_positions: StartPositions,
        max_records: int,
        within_s: float,
        prefix: str = "",
    ) -> None:
        """Create the transport.

        Args:
            url: brokers.
            app: the app that uses it.
            deliver: takes one `Fetch`; awaited before the next one is handed over, unless a rebalance cancels it.
            start_positions: returns the offsets at which to read newly assigned partitions. It may block: it is called
                in a thread of its own.
            max_records: largest number of records in a fetch.
            within_s: longest time for which records wait at the broker to fill a fetch, in seconds.
            prefix: of the names of topics and of the group in the cluster; fetches and positions are without it.
        """
        super().__init__(url, app)
        self.deliver, self.start_positions = deliver, start_positions
        self.max_records, self.within_s, self.prefix = max_records, within_s, prefix

    def member(self) -> GroupMember:
        """Return the worker's current membership in its group. Any thread may call it."""
        return cast(_ConsumerThread, cast(_Consumer, self.app.consumer)._thread).member()


class _Consumer(driver.Consumer):
    """Hands fetches to the transport's `deliver`."""

    logger = driver.logger

    def _new_consumer_thread(self) -> "_ConsumerThread":
        return _ConsumerThread(self, loop=self.loop, beacon=self.beacon)

    async def _drain_messages(self, fetcher: Any) -> None:
        try:
            while not (self._stopped.is_set() or fetcher._stopped.is_set()):
                fetch, _ = await self._wait_next_records(_WAIT_S)
                if fetch and self.flow_active:
                    # A rebalance ends the wait.
                    delivered = cast(Transport, self.transport).deliver(cast(Fetch, fetch))
                    await self.wait_first(delivered, self.suspend_flow.wait())
        except (ConsumerStoppedError, asyncio.CancelledError):
            if not self.app.should_stop:
                raise

    async def _getmany(self, active_partitions: Any, timeout: float) -> Any:
        return await cast(_ConsumerThread, self._thread).fetch(active_partitions, timeout)

    def verify_event_path(self, now: float, tp: TP) -> None:
        """Do nothing: Faust's check expects its own acknowledgements."""


class _ConsumerThread(driver.AIOKafkaConsumerThread):
    """aiokafka's consumer in a thread of its own."""

    logger = driver.logger

    def __post_init__(self) -> None:
        super().__post_init__()
        self._reported: dict[Any, int] = {}
        self._seeks = 0

    def _short(self, name: str) -> str:
        return name.removeprefix(cast(Transport, self.transport).prefix)

    def _create_worker_consumer(self, transport: Any) -> Any:
        consumer = super()._create_worker_consumer(transport)
        # Faust sets it only with its own transactions. The fetcher reads it when the consumer starts.
        consumer._isolation_level = "read_committed"
        # By default, the fetcher looks at all partitions five times a second. All that it waits for also wakes it.
        consumer._consumer_timeout = _IDLE_REQUEST_S
        consumer._fetch_max_wait_ms = int(_IDLE_REQUEST_S * 1000)
        if transport.within_s:
            # Otherwise, each record would be fetched alone, by a request that names all partitions.
            consumer._fetch_min_bytes = _FULL_FETCH_BYTES
            consumer._fetch_max_wait_ms = int(transport.within_s * 1000)
        return consumer

    async def on_start(self) -> None:
        """Start the consumer."""
        await super().on_start()
        self._requests = FetchRequests(self._ensure_consumer()._fetcher)

    async def _keepalive2(self) -> None:
        """Do nothing: mode wakes the loops of both threads each second to see that they go on."""

    def member(self) -> GroupMember:
        """Return the current membership."""
        coordinator = self._ensure_consumer()._coordinator
        group = self._short(coordinator.group_id)
        return GroupMember(group, coordinator.generation, coordinator.member_id, coordinator._group_instance_id)

    async def seek_to_committed(self) -> Mapping[TP, int]:
        """Seek every assigned partition to the position that the transport's caller gives."""
        return cast(Mapping[TP, int], await self.call_thread(self._seek_to_start))

    async def _seek_to_start(self) -> Mapping[Any, int]:
        consumer = self._ensure_consumer()
        assigned = {(self._short(tp.topic), tp.partition) for tp in consumer.assignment()}
        self._reported = {}
        positions = await asyncio.to_thread(cast(Transport, self.transport).start_positions, assigned)
        sought = {}
        for tp in consumer.assignment():
            if (offset := positions.get((self._short(tp.topic), tp.partition))) is not None:
                consumer.seek(tp, offset)
                self._reported[tp] = sought[tp] = offset
        self._seeks += 1
        return sought

    async def fetch(self, active: Any, wait_s: float) -> Fetch | None:
        """Return the next records or moved positions; None if there are none within `wait_s` seconds.

        Also None if the membership changed meanwhile. The partitions are then assigned and sought anew.
        """
        return cast(Fetch | None, await self.call_thread(self._fetch, active, wait_s))

    async def _fetch(self, active: Any, wait_s: float) -> Fetch | None:
        consumer = self._ensure_consumer()
        transport = cast(Transport, self.transport)
        member, seeks = self.member(), self._seeks
        self._requests.release()
        # One call: if another one after it failed, the records of the first would be lost.
        fetched = await self._fetch_records(consumer, active, timeout=wait_s, max_records=transport.max_records)
        moved = self._moved_positions(consumer)
        if self._seeks != seeks or self.member() != member or not self.consumer.flow_active:
            # The wait may outlast a whole rebalance, and so get records from behind the new start.
            for tp, (begin, _) in moved.items():
                consumer.seek(tp, begin)
            return None
        metrics.LAG_OFFSETS.set(self._lag(consumer))
        if not moved:
            return None
        self._reported |= {tp: end for tp, (_, end) in moved.items()}
        records = [
            Record(self._short(tp.topic), m.partition, m.offset, m.timestamp, m.key, m.value, _traceparent(m.headers))
            for tp, batch in fetched.items()
            for m in batch
        ]
        positions = {(self._short(tp.topic), tp.partition): span for tp, span in moved.items()}
        if len(records) < transport.max_records and not transport.within_s:
            # No backlog: one request after this fetch is processed gets all that came meanwhile.
            self._requests.hold()
        return Fetch(member, records, positions)

    def _moved_positions(self, consumer: Any) -> dict[Any, tuple[int, int]]:
        """Return the last reported and the present position of each partition that has moved."""
        moved = {}
        for tp, state in self._states(consumer).items():
            if state.has_valid_position and state.position != (before := self._reported[tp]):
                moved[tp] = before, state.position
        return moved

    def _states(self, consumer: Any) -> dict[Any, Any]:
        """Return aiokafka's state of each assigned partition that has a reported position."""
        subscription = consumer._subscription.subscription
        assignment = None if subscription is None else subscription.assignment
        if assignment is None:
            return {}
        return {tp: assignment.state_value(tp) for tp in assignment.tps & self._reported.keys()}

    def _lag(self, consumer: Any) -> int:
        """Return the offsets between the reported positions and the ends of the log, as of the last answers."""
        ends = ((state.highwater, self._reported[tp]) for tp, state in self._states(consumer).items())
        return sum(max(0, end - reported) for end, reported in ends if end is not None)


Transport.Consumer = _Consumer


def _traceparent(headers: Iterable[tuple[str, bytes | None]]) -> str:
    for name, value in headers:
        if name == HEADER:
            return (value or b"").decode("latin-1")
    return ""

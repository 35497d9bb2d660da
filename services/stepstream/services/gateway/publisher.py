"""Publishes events without ever delaying or failing a call: on disk first, then to Kafka; see `topics.delivery`."""

from collections.abc import Sequence

from stepstream.config import Settings
from stepstream.crypto.key_ring import codec_of
from stepstream.delivery.confirmed_producer import ConfirmedProducer, NotDelivered
from stepstream.delivery.spool import gateway_spool
from stepstream.delivery.spooled_producer import SpooledProducer, UndeliveredEvents
from stepstream.delivery.types import BacklogLimits, Event
from stepstream.services.gateway.metrics import Metrics

__all__ = ["Event", "NotDelivered", "Publisher", "UndeliveredEvents"]

MB = 1024 * 1024


class Publisher:
    """The way of the gateway's events to Kafka. Close it."""

    def __init__(self, settings: Settings, source: str, metrics: Metrics) -> None:
        """Takes up what an earlier gateway left in the spool, and begins to deliver."""
        gateway = settings.gateway
        self._delivery = SpooledProducer(
            settings.kafka,
            lambda keep_key: codec_of(settings, keep_key=keep_key),
            source,
            _Counting(metrics),
            BacklogLimits(
                gateway_spool(settings),
                spool_bytes=gateway.spool_mb * MB,
                memory_bytes=gateway.backlog_mb * MB,
            ),
        )
        self._confirmed = ConfirmedProducer(settings.kafka, self._delivery, source)

    def publish(self, event: Event) -> bool:
        """Spools one event and sees to it that it arrives; takes microseconds. False: it is lost, no room is left."""
        return self._delivery.send(event.topic, event.key, event.record, event.headers)

    def publish_all(self, events: Sequence[Event]) -> None:
        """As `publish`, for less each; what is lost is counted."""
        self._delivery.send_all(events)

    async def deliver(self, events: Sequence[Event], timeout_s: float) -> None:
        """Returns when Kafka has acknowledged all events, which are not spooled.

        Raises:
            NotDelivered: it has not, for sure; its `retry` says whether sending them again may help.
        """
        await self._confirmed.deliver(events, timeout_s)

    def waiting(self) -> int:
        """Spooled events that Kafka has not acknowledged yet."""
        return self._delivery.waiting()

    def close(self, timeout_s: float) -> UndeliveredEvents:
        """Delivers what it can within `timeout_s` seconds; what is left on disk goes out with the next gateway."""
        self._confirmed.close()
        return self._delivery.close(timeout_s)


class _Counting:
    """What becomes of events, as metrics."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def delivered(self, events: int) -> None:
        self._metrics.events_delivered.inc(events)

    def refused(self, events: int) -> None:
        self._metrics.events_refused.inc(events)

    def lost(self, events: int) -> None:
        self._metrics.events_lost.inc(events)

    def unspooled(self, events: int) -> None:
        self._metrics.events_unspooled.inc(events)

    def backlog(self, events: int, spool_bytes: int) -> None:
        self._metrics.backlog.set(events)
        self._metrics.spool_bytes.set(spool_bytes)

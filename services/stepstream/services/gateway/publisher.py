"""Publish events without delaying or failing a call: append each to a local spool, then send it to Kafka."""

from collections.abc import Sequence

from stepstream.config import Settings
from stepstream.crypto.key_ring import sealing_codec
from stepstream.delivery.confirmed_producer import ConfirmedProducer, NotDelivered
from stepstream.delivery.spooled_producer import SpooledProducer, UndeliveredEvents
from stepstream.delivery.types import BacklogLimits, Event
from stepstream.services.gateway.metrics import Metrics

__all__ = ["Event", "NotDelivered", "Publisher", "UndeliveredEvents"]

MB = 1024 * 1024


class Publisher:
    """Sends the gateway's events at least once; see `stepstream.delivery`. Close it."""

    def __init__(self, settings: Settings, source: str, metrics: Metrics) -> None:
        """Begin to send, first the events that an earlier gateway left in the spool."""
        gateway = settings.gateway
        self._spool_limit = gateway.spool_mb * MB
        metrics.spool_limit_bytes.set(self._spool_limit)
        self._delivery = SpooledProducer(
            settings.kafka,
            lambda keep_key: sealing_codec(settings, keep_key=keep_key),
            source,
            _DeliveryMetrics(metrics),
            BacklogLimits(
                settings.gateway_spool,
                spool_bytes=self._spool_limit,
                memory_bytes=gateway.backlog_mb * MB,
            ),
        )
        self._confirmed = ConfirmedProducer(settings.kafka, self._delivery, source)

    def publish(self, event: Event) -> bool:
        """Spool one event and send it later; takes microseconds. False: the backlog is full and the event is lost."""
        return self._delivery.send(event.topic, event.key, event.record, event.headers)

    def publish_all(self, events: Sequence[Event]) -> None:
        """Do as `publish` at a lower cost per event; lost events are counted."""
        self._delivery.send_all(events)

    async def deliver(self, events: Sequence[Event], timeout_s: float) -> None:
        """Send events without the spool; return when Kafka has acknowledged all.

        Raises:
            NotDelivered: some are not acknowledged within `timeout_s` seconds; `retry` says if another try may help.
        """
        await self._confirmed.deliver(events, timeout_s)

    def waiting(self) -> int:
        """Return the number of spooled events that Kafka has not acknowledged."""
        return self._delivery.unacknowledged()

    def spool_share(self) -> float:
        """Return the size of the spool relative to its limit."""
        return self._delivery.spool_bytes() / self._spool_limit

    def close(self, timeout_s: float) -> UndeliveredEvents:
        """Send for up to `timeout_s` seconds; the next gateway sends the events left on disk."""
        self._confirmed.close()
        return self._delivery.close(timeout_s)


class _DeliveryMetrics:
    """Counts the outcomes of events."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def on_delivered(self, events: int) -> None:
        self._metrics.events_delivered.inc(events)

    def on_rejected(self, events: int) -> None:
        self._metrics.events_refused.inc(events)

    def on_dropped(self, events: int) -> None:
        self._metrics.events_lost.inc(events)

    def on_unspooled(self, events: int) -> None:
        self._metrics.events_unspooled.inc(events)

    def on_backlog(self, events: int, spool_bytes: int) -> None:
        self._metrics.backlog.set(events)
        self._metrics.spool_bytes.set(spool_bytes)

"""Answer the page Audit: what people did in the console."""

from contextlib import closing

from confluent_kafka import KafkaException

from stepstream.services.console.endpoints import Answer, Call, reads
from stepstream.services.console.event_log import LogUnavailable
from stepstream.topics.catalogue import CONSOLE_ACTIONS
from stepstream.topics.codec import Codec, RegistryUnavailable
from stepstream.topics.consumer import EventConsumer

MOST_RECORDS = 500
"""Newest records that the page shows; an action has two."""
_FIELDS = ("action_id", "occurred_at_us", "user", "role", "tenant", "action", "state", "target", "reason")


@reads("/api/audit", role="admin", installation=True)
def audit(call: Call) -> Answer:
    """Return the newest records of `console-actions`, the newest first."""
    settings = call.services.settings
    records = []
    try:
        with closing(Codec(settings)) as codec, EventConsumer(settings.kafka, codec) as events:
            ranges = events.offset_ranges(CONSOLE_ACTIONS)
            events.follow([CONSOLE_ACTIONS], {one: end - MOST_RECORDS for one, (_, end) in ranges.items()})
            while not events.is_caught_up():
                records += [event.record for event in events.poll(MOST_RECORDS, 0.2) if event.record is not None]
    except (KafkaException, RegistryUnavailable) as error:
        raise LogUnavailable(f"the actions could not be read: {error}") from error
    return {"actions": [{name: record[name] for name in _FIELDS} for record in reversed(records)]}


ENDPOINTS = (audit,)

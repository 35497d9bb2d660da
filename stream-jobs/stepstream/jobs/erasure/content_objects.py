"""Remove objects with the content of large records: those of erased persons, and those that no record names."""

from collections.abc import Iterable
from datetime import date

from stepstream.config import Settings
from stepstream.core.object_store import list_names, remove
from stepstream.crypto.content_store import content_address
from stepstream.jobs.erasure.read_log import read_events
from stepstream.topics.catalogue import SEALED_TOPICS
from stepstream.topics.codec import Codec


def remove_objects(settings: Settings, paths: Iterable[str]) -> None:
    """Remove objects by their paths; those that are gone count as removed.

    Raises:
        OSError: the store does not answer.
    """
    address = content_address(settings)
    for path in paths:
        remove(address, path)


def unnamed_objects(settings: Settings, before: date) -> list[str]:
    """Return the paths of the objects from before a day that no record names. Reads the topics to their present end.

    Raises:
        OSError: the store does not answer.
        KafkaException: a topic does not exist, or no broker answers.
    """
    address = content_address(settings)
    old = {
        f"{tenant}/{day}/{name}"
        for tenant in list_names(address)
        for day in list_names(f"{address}/{tenant}")
        if day < before.isoformat()
        for name in list_names(f"{address}/{tenant}/{day}")
    }
    if not old:
        return []
    codec = Codec(settings, keep_arrays=True)
    try:
        for topic in sorted(SEALED_TOPICS):
            for event in read_events(settings, codec, topic):
                if event.record is not None and (claim := event.record["claim"]) is not None:
                    old.discard(claim["path"])
    finally:
        codec.close()
    return sorted(old)

"""Follows a model's published versions, to know how far the learner has come."""

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

from stepstream.config import Settings
from stepstream.topics.codec import Codec
from stepstream.topics.consumer import EventConsumer

log = logging.getLogger(__name__)

TOPIC = "checkpoints"


class Lineage:
    """Counts versions from the root of their lineage. Pure."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._depths: dict[int, int] = {}

    def add(self, checkpoint: Mapping[str, Any]) -> int | None:
        """The depth of this checkpoint, 0 for a root; None for another model's."""
        if checkpoint["model"] != self._model:
            return None
        parent = checkpoint["parent_version"]
        depth = 0 if parent is None else self._depths.get(parent, -1) + 1
        self._depths[checkpoint["version"]] = depth
        return depth


class VersionFollower:
    """A thread that tells the depth of the newest version of the fleet's model, and of each that follows."""

    def __init__(
        self,
        settings: Settings,
        advance: Callable[[int], object],
        ready: Callable[[], object],
        fail: Callable[[Exception], object],
    ) -> None:
        """All are called from the thread: `ready` after the versions that were there, `fail` before it ends early."""
        self._settings = settings
        self._advance = advance
        self._ready = ready
        self._fail = fail
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="versions", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread."""
        self._stopping.set()
        self._thread.join(timeout=5.0)

    def _follow(self) -> None:
        lineage = Lineage(self._settings.fleet.model)
        try:
            with EventConsumer(self._settings.kafka, Codec(self._settings.schema_registry)) as consumer:
                consumer.follow([TOPIC])
                told = False
                while not self._stopping.is_set():
                    if not told and consumer.caught_up():
                        self._ready()
                        told = True
                    for event in consumer.poll(100, 0.2):
                        depth = lineage.add(event.record) if event.record is not None else None
                        if depth is not None:
                            self._advance(depth)
        except Exception as error:  # the fleet's own loop ends the process with it
            self._fail(error)

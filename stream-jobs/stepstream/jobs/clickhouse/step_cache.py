"""Governed steps with their tokens, read once from the log into a file, to be looked up by event id."""

import sqlite3
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import cast

import orjson

from stepstream.config import Settings
from stepstream.crypto.sealing import is_erased
from stepstream.topics.codec import Codec
from stepstream.topics.consumer import EventConsumer
from stepstream.topics.events import Step

_BATCH = 2000
_POLL_S = 1.0
_ASKED = 500


class StepCache:
    """Steps of some trajectories; a file on disk, since they may be more than memory holds."""

    def __init__(self, file: Path) -> None:
        """Makes the file, which must not exist."""
        self._db = sqlite3.connect(file)
        self._db.execute("PRAGMA journal_mode = OFF")
        self._db.execute("PRAGMA synchronous = OFF")
        self._db.execute("CREATE TABLE steps (event_id TEXT PRIMARY KEY, step BLOB) WITHOUT ROWID")

    def fill(self, settings: Settings, codec: Codec, trajectories: Collection[str]) -> None:
        """Reads all of the governed steps and keeps those of the trajectories; erased ones are left out."""
        with EventConsumer(settings.kafka, codec) as consumer:
            consumer.follow(["governed-steps"])
            while not consumer.caught_up():
                found = [
                    (event.record["event_id"], orjson.dumps(event.record))
                    for event in consumer.poll(_BATCH, _POLL_S)
                    if event.record is not None
                    and event.record["trajectory_id"] in trajectories
                    and not is_erased(event.record)
                ]
                self._db.executemany("INSERT OR REPLACE INTO steps VALUES (?, ?)", found)
        self._db.commit()

    def get(self, event_ids: Sequence[str]) -> dict[str, Step]:
        """The steps of these ids that are there."""
        found: dict[str, Step] = {}
        for start in range(0, len(event_ids), _ASKED):
            asked = event_ids[start : start + _ASKED]
            marks = ", ".join("?" * len(asked))
            rows = self._db.execute(f"SELECT event_id, step FROM steps WHERE event_id IN ({marks})", list(asked))
            found |= {event_id: cast(Step, orjson.loads(step)) for event_id, step in rows}
        return found

    def close(self) -> None:
        """Closes the file."""
        self._db.close()

"""Copy governed steps with their tokens from the log into a file, and look them up by event id."""

import sqlite3
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import cast

import orjson

from stepstream.config import Settings
from stepstream.crypto.sealing import is_erased
from stepstream.topics.catalogue import GOVERNED_STEPS
from stepstream.topics.codec import Codec
from stepstream.topics.consumer import EventConsumer
from stepstream.topics.events import Step

_BATCH = 2000
_POLL_S = 1.0
_IDS_PER_QUERY = 500


class StepCache:
    """Steps of some trajectories, on disk: they may exceed memory."""

    def __init__(self, file: Path) -> None:
        """Create the file, which must not exist."""
        self._db = sqlite3.connect(file)
        self._db.execute("PRAGMA journal_mode = OFF")
        self._db.execute("PRAGMA synchronous = OFF")
        self._db.execute(
            "CREATE TABLE steps (tenant TEXT, event_id TEXT, step BLOB, PRIMARY KEY (tenant, event_id)) WITHOUT ROWID"
        )

    def fill(self, settings: Settings, codec: Codec, trajectories: Collection[tuple[str, str]]) -> None:
        """Read all governed steps from the log; save those of the trajectories (tenant, id) that are not erased."""
        with EventConsumer(settings.kafka, codec) as consumer:
            consumer.follow([GOVERNED_STEPS])
            while not consumer.is_caught_up():
                steps = [
                    (event.record["tenant"], event.record["event_id"], orjson.dumps(event.record))
                    for event in consumer.poll(_BATCH, _POLL_S)
                    if event.record is not None
                    and (event.record["tenant"], event.record["trajectory_id"]) in trajectories
                    and not is_erased(event.record)
                ]
                self._db.executemany("INSERT OR REPLACE INTO steps VALUES (?, ?, ?)", steps)
        self._db.commit()

    def get(self, tenant: str, event_ids: Sequence[str]) -> dict[str, Step]:
        """Return the saved steps of a tenant with these ids."""
        steps: dict[str, Step] = {}
        for start in range(0, len(event_ids), _IDS_PER_QUERY):
            ids = event_ids[start : start + _IDS_PER_QUERY]
            marks = ", ".join("?" * len(ids))
            query = f"SELECT event_id, step FROM steps WHERE tenant = ? AND event_id IN ({marks})"
            rows = self._db.execute(query, [tenant, *ids])
            steps |= {event_id: cast(Step, orjson.loads(step)) for event_id, step in rows}
        return steps

    def close(self) -> None:
        """Close the file."""
        self._db.close()

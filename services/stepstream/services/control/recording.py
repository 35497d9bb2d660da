"""Record the inputs of decisions to files, for `stepstream simulate --log` and for replays: a file a day (UTC).

Decisions are on the log, their inputs are not: a snapshot has one entry a trajectory.
"""

import logging
from datetime import UTC, datetime
from pathlib import Path

from stepstream.services.control.decide.records import History, Snapshot
from stepstream.services.control.scope import Scope
from stepstream.services.control.simulate.recorded import Recorded, to_line

log = logging.getLogger(__name__)


class Recording:
    """Files of snapshots in a folder. A file that cannot be written delays no decision."""

    def __init__(self, folder: Path, every_s: float) -> None:
        """Record snapshots on which nothing new was decided each `every_s` seconds, for each scope."""
        self._folder, self._every_us = folder, every_s * 1e6
        self._recorded_us: dict[Scope, int] = {}

    def add(self, snapshot: Snapshot, history: History, *, is_new: bool) -> None:
        """Append the inputs of a decision; `is_new`: the decision is published, so always."""
        scope = Scope(snapshot.tenant, snapshot.agent, snapshot.model)
        before_us = self._recorded_us.get(scope)
        if not is_new and before_us is not None and snapshot.at_us - before_us < self._every_us:
            return
        self._recorded_us[scope] = snapshot.at_us
        file = self._folder / f"snapshots-{datetime.fromtimestamp(snapshot.at_us / 1e6, UTC):%Y-%m-%d}.jsonl"
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            with file.open("ab") as lines:
                lines.write(to_line(Recorded(snapshot, history)))
        except OSError as error:
            log.warning("did not record a snapshot to %s: %s", file, error)

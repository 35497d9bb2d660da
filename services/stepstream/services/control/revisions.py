"""Notice that outcomes which the decision before counted were revised: by feedback, or by another specification.

The memory lasts as long as the controller acts: its first decision about a scope compares with nothing.
"""

from collections.abc import Iterable

from stepstream.services.control.scope import Scope
from stepstream.services.control.statistics import OutcomeRow

REVISED_SHARE = 0.01
"""Share of the outcomes counted before, above which a revision holds. Single outcomes of a large fleet change all the
time: without this bound it would hold for ever, also while a version does harm."""


class Revisions:
    """Outcomes of each scope at its last look. Use it from one thread."""

    def __init__(self) -> None:
        self._before: dict[Scope, dict[str, bool]] = {}

    def look(self, scope: Scope, rows: Iterable[OutcomeRow]) -> bool:
        """Return True if more than 1 % of the outcomes of the last look have changed; remember those of this look.

        An outcome that was missing before is late, not revised. One that is gone has left the window, or was erased.
        """
        now = {row.trajectory_id: row.success for row in rows if row.trajectory_id and row.success is not None}
        before = self._before.get(scope, {})
        self._before[scope] = now
        known = now.keys() & before.keys()
        return sum(now[name] != before[name] for name in known) > REVISED_SHARE * len(known)

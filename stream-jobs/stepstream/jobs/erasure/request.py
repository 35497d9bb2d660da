"""Keep what a request to erase a person has removed so far, in a file, so that a continued one proves all of it.

What is about to be removed is saved before it is. After a kill, what is left shows what was removed: a range of a
partition that now begins behind it, and rows that the table no longer has. The file holds no name and no content.
"""

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

import orjson

from stepstream.jobs.erasure.findings import OffsetRange
from stepstream.topics.ids import new_event_id


@dataclass
class ErasureRequest:
    """One request, from its first attempt to its proof."""

    requested_by: str
    requested_at_us: int
    request_id: str = field(default_factory=new_event_id)
    decisions: list[str] = field(default_factory=list)
    """event_id of each attempt's record on `erasures`."""
    key_ids: list[str] = field(default_factory=list)
    """Keys that this request destroys."""
    deleted: dict[str, OffsetRange] = field(default_factory=dict)
    """Ranges that are deleted, or about to be, by `topic/partition`."""
    rows: dict[str, int] = field(default_factory=dict)
    """Number of deleted rows by table."""
    rows_planned: dict[str, int] = field(default_factory=dict)
    """Number of rows that are about to be deleted, by step of the deletion."""
    consents: int = 0
    """Number of the person's consents that are deleted, or about to be."""

    def plan_ranges(
        self, unsealed: Mapping[tuple[str, int], OffsetRange], first_offsets: Mapping[tuple[str, int], int]
    ) -> None:
        """Add ranges that are deleted next, where an earlier attempt has not deleted them.

        Args:
            unsealed: ranges that the search found.
            first_offsets: first offset of each partition of `deleted` and `unsealed` as of now.
        """
        for place, first in first_offsets.items():
            name = range_name(place)
            earlier, found = self.deleted.get(name), unsealed.get(place)
            if earlier is not None and earlier.last >= first:
                del self.deleted[name]  # not deleted: the search has found all of it again
                earlier = None
            if found is not None:
                before = earlier or OffsetRange(first, found.last, 0)
                self.deleted[name] = OffsetRange(before.first, found.last, before.records + found.records)

    def plan_rows(self, step: str, table: str, present: int) -> None:
        """Record the number of rows that are deleted next; those of an interrupted deletion that are gone count."""
        self.rows[table] = self.rows.get(table, 0) + max(0, self.rows_planned.get(step, 0) - present)
        self.rows_planned[step] = present

    def rows_removed(self, step: str, table: str) -> None:
        """Record that the planned rows are deleted."""
        self.rows[table] = self.rows.get(table, 0) + self.rows_planned.pop(step, 0)

    def rows_of(self, tables: Collection[str]) -> int:
        """Return the number of deleted rows of some tables."""
        return sum(rows for table, rows in self.rows.items() if table in tables)

    def save(self, path: Path) -> None:
        """Write the file so that a killed process leaves the old or the new one."""
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(".new")
        temporary.write_bytes(orjson.dumps(asdict(self)))
        temporary.replace(path)

    def end(self, path: Path) -> None:
        """Delete the file."""
        path.unlink(missing_ok=True)

    @staticmethod
    def load(path: Path) -> "ErasureRequest | None":
        """Read the request that was not finished; None: there is none."""
        try:
            saved = orjson.loads(path.read_bytes())
        except FileNotFoundError:
            return None
        ranges = {name: OffsetRange(**fields) for name, fields in saved.pop("deleted").items()}
        return ErasureRequest(**saved, deleted=ranges)


def range_name(place: tuple[str, int]) -> str:
    """Return the name of a partition in a request."""
    return f"{place[0]}/{place[1]}"


def parse_range_name(name: str) -> tuple[str, int]:
    """Reverse `range_name`."""
    topic, _, partition = name.rpartition("/")
    return topic, int(partition)

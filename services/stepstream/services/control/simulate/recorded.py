"""Replay recorded snapshots through the decision function, and read and write them as JSON lines. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import orjson
from pydantic import TypeAdapter, ValidationError

from stepstream.services.control.decide.decide import decide
from stepstream.services.control.decide.own_rules import OwnRule
from stepstream.services.control.decide.policy import ControlPolicy
from stepstream.services.control.decide.records import Decision, History, Past, Snapshot, past_of


class RecordError(ValueError):
    """A line is no recorded snapshot; the message names the line and the field."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """Inputs of one decision."""

    snapshot: Snapshot
    history: History


_RECORDED: TypeAdapter[Recorded] = TypeAdapter(Recorded)


def to_line(record: Recorded) -> bytes:
    """Return a record as one line of JSON, with its line feed."""
    return orjson.dumps(record, default=tuple, option=orjson.OPT_SORT_KEYS | orjson.OPT_APPEND_NEWLINE)


def read_lines(lines: Iterable[bytes]) -> Iterator[Recorded]:
    """Yield the records of a file; empty lines are left out.

    Raises:
        RecordError: a line is no record.
    """
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            yield _RECORDED.validate_json(line)
        except ValidationError as error:
            first = error.errors()[0]
            path = ".".join(map(str, first["loc"]))
            raise RecordError(f"line {number}: {path + ': ' if path else ''}{first['msg']}") from None


def replay(records: Iterable[Recorded], policy: ControlPolicy, own: Sequence[OwnRule] = ()) -> Iterator[Decision]:
    """Yield the policy's decision on each record, `hold` included.

    The policy's own decisions replace the recorded ones, so that its limits hold. Canary, promotion and statistics stay
    as recorded: what another decision would have changed in them is unknown.
    """
    past: defaultdict[tuple[str, str, str], list[Past]] = defaultdict(list)
    for record in records:
        snapshot = record.snapshot
        earlier = past[snapshot.tenant, snapshot.agent, snapshot.model]
        decision = decide(snapshot, replace(record.history, decisions=tuple(earlier)), policy, own)
        if decision.action != "hold":
            earlier.append(past_of(decision))
        yield decision

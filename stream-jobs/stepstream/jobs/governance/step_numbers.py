"""Give each step of a trajectory an index of its own, where gateways of several folders counted its steps.

A gateway counts without asking others, so two of them may give one index. The steps of a trajectory are in one
partition, where `govern` reads them in one order. The first step with an index keeps it. A later one of another count
gets the first free index that follows its own and that of the step that it continues. The order of the log puts a step
behind the one that it continues, so an index that is free also follows that one's: every index is given once, without
gaps, and no step continues one of a higher index, which `label` could not join.

State: the indices in use by each trajectory, and for each step that got another index, the index that its gateway gave
it, since later steps of that gateway refer to it.
"""

import hashlib
import struct
from collections.abc import Callable
from dataclasses import dataclass

import orjson

from stepstream.jobs.governance.state import MOVED, USED, day_of, trajectory_digest
from stepstream.jobs.runtime.index_set import IndexSet
from stepstream.jobs.runtime.state import Changes
from stepstream.topics.events import Step
from stepstream.topics.step_contexts import shared_step

_INDEX = struct.Struct(">i")


@dataclass
class NumberedStep:
    """A step with its final index."""

    step: Step
    save: Callable[[Changes], None]
    """Records the index, once the step is published."""


def number_step(step: Step, changes: Changes, days: int, replaced: int | None = None) -> NumberedStep:
    """Return the step with its final index and references; `counted_by` of the result is null.

    Args:
        step: a valid step that `govern` has not seen before.
        changes: state.
        days: days before the step in which its trajectory may have begun.
        replaced: index of another record of the same call, whose place the step takes; None: it takes none.
    """
    used, has_moved = _used(step, changes, days)
    count, counted = step["counted_by"], step["step_index"]
    index = counted
    if count is not None:
        before = shared_step(step)
        reference = _moved(step, count, before, changes, days) if has_moved and before is not None else before
        if replaced is not None:
            index = replaced
        else:
            index = used.first_free(counted if reference is None else max(counted, reference + 1))
        if index != counted or reference != before:
            step = {**step, "step_index": index, "prompt_shared_step": None if reference == index - 1 else reference}
        step = {**step, "counted_by": None}

    def save(changes: Changes) -> None:
        used.add(index)
        value = orjson.dumps([used.ranges(), has_moved or index != counted])
        changes.put(_used_key(step, 0), value)
        if count is not None and index != counted:
            changes.put(_moved_key(step, count, counted, 0), _INDEX.pack(index))

    return NumberedStep(step, save)


def _used(step: Step, changes: Changes, days: int) -> tuple[IndexSet, bool]:
    for days_back in range(days + 1):
        value = changes.get(_used_key(step, days_back))
        if value is not None:
            ranges, has_moved = orjson.loads(value)
            return IndexSet([(begin, end) for begin, end in ranges]), has_moved
    return IndexSet(), False


def _moved(step: Step, count: str, index: int, changes: Changes, days: int) -> int:
    for days_back in range(days + 1):
        value = changes.get(_moved_key(step, count, index, days_back))
        if value is not None:
            return int(_INDEX.unpack(value)[0])
    return index


def _used_key(step: Step, days_back: int) -> bytes:
    return USED + day_of(step, days_back) + trajectory_digest(step)


def _moved_key(step: Step, count: str, index: int, days_back: int) -> bytes:
    name = hashlib.blake2b(count.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return MOVED + day_of(step, days_back) + trajectory_digest(step) + name + _INDEX.pack(index)

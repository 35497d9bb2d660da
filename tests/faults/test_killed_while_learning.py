"""The learner dies at each line of taking in, journalling and publishing: it goes on as if it had not."""

from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import orjson
import pytest
from killed_lines import executed_lines, is_killed_at
from labelled_records import LIMITS, group_of, labelled

from stepstream.config import LearnerSettings, Settings
from stepstream.core.process import Stop
from stepstream.learner import learner, reporter
from stepstream.learner.data.attempt import Attempt
from stepstream.learner.data.reader import Arrival, arrival_of
from stepstream.learner.lineage import Versions, offsets_of
from stepstream.learner.model.checkpoint import describe, verify
from stepstream.topics.codec import CodecError
from stepstream.topics.consumer import Event
from stepstream.topics.events import new_checkpoint

pytest_plugins = ["memory_folder"]

KILLED = ("learner/learner.py", "learner/reporter.py", "learner/publish.py")
FIGURES = ("loss", "reward", "staleness_max", "clip_share", "effective_share", "tokens")
UNTRAINED = {"shown/0": "split", "alike/0": "no_variance", "alike/1": "no_variance"}
UNTRAINED |= {"odd/0": "invalid", "odd/1": "group_too_small"}
"""What is let go of, and why."""


def labels() -> list[tuple[str, Any, CodecError | None]]:
    """What is in the labelled topic: groups of two attempts for each version, some of them not to be trained on.

    Before them all is something that is no record: the first version's offsets pass it.
    """
    first = [record for n in range(2) for record in group_of(f"g{n}", 2)]
    first += [labelled("shown", 0, 1.0, split="eval"), *(labelled("alike", n, 1.0, versions=(1, 1)) for n in range(2))]
    first += [labelled("odd", 0, float("nan")), labelled("odd", 1, 1.0, versions=(1, 1))]
    second = [record for n in range(2, 4) for record in group_of(f"g{n}", 2, versions=(1, 1))]
    before, after = ([(record["group_id"] or "", record, None) for record in part] for part in (first, second))
    return [("bad", None, CodecError("malformed", "no record")), *before, *after]


class Log:
    """The topics that the learner writes: an event is there as soon as it is delivered, once the process has died."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def append(self, events: Sequence[tuple[str, Any]]) -> None:
        lines = b"".join(orjson.dumps(event, default=bytes.decode) + b"\n" for event in events)
        with self._file.open("ab", buffering=0) as file:
            file.write(lines)

    def of(self, topic: str) -> list[Any]:
        lines = self._file.read_bytes().splitlines()
        return [record for of, record in map(orjson.loads, lines) if of == topic]

    def keep_first(self) -> None:
        self._file.write_bytes(self._file.read_bytes().splitlines(keepends=True)[0])


class Producer:
    """Delivers as late as it may, and what was sent last first: topics are not in order among each other."""

    def __init__(self, log: Log) -> None:
        self._log, self._queued = log, list[tuple[str, Any]]()

    def __len__(self) -> int:
        return len(self._queued)

    def send(self, topic: str, _key: str, record: Any) -> None:
        self._queued.append((topic, record))

    def poll(self, timeout_s: float = 0.0) -> None:
        if timeout_s and self._queued:
            self._log.append([self._queued.pop()])

    def flush(self, _timeout_s: float | None = None) -> None:
        while self._queued:
            self.poll(1.0)


class Weights:
    """A trainer whose weights are the names of what it was trained on."""

    lags = ()

    def __init__(self, folder: Path) -> None:
        self._trained = (folder / "model.safetensors").read_text().split()

    def limits(self, _model: str) -> Any:
        return LIMITS

    def update(self, _number: int, groups: Sequence[Sequence[Attempt]], _version: int) -> dict[str, float]:
        self._trained += [attempt.trajectory_id for group in groups for attempt in group]
        return dict.fromkeys(FIGURES, 0.5)

    def snapshot(self) -> "Weights":
        return self

    def write(self, folder: Path) -> None:
        (folder / "model.safetensors").write_text(" ".join(self._trained))


class World:
    """A log with a root in it, and a learner that follows it to its end."""

    def __init__(self, data: Path, patch: pytest.MonkeyPatch) -> None:
        self.data, self.log = data, Log(data / "log")
        self.settings = Settings(
            learner=LearnerSettings(
                model=LIMITS.model,
                checkpoints=str(data),
                group_size=2,
                groups_per_update=1,
                updates_per_checkpoint=2,
                staleness_bound=0,
            )
        )
        root = data / LIMITS.model / "0"
        root.mkdir(parents=True)
        (root / "model.safetensors").write_text("")
        told = new_checkpoint(
            event_id="c0", occurred_at_us=0, model=LIMITS.model, version=0, uri=root.as_uri(), files=describe(root),
            weights_sha256="", code_version="",
        )  # fmt: skip
        self.log.append([("checkpoints", told)])
        self.read = [
            arrival_of(Event("labeled-trajectories", 0, offset, key, record, error), LIMITS)
            for offset, (key, record, error) in enumerate(labels())
        ]
        patch.setattr(reporter, "EventProducer", lambda *_, **__: Producer(self.log))
        patch.setattr(learner, "EventConsumer", lambda *_: _Ends(len(self.read)))
        patch.setattr(learner, "trainer_for", lambda folder, *_: Weights(folder))
        patch.setattr(learner, "read_decisions", lambda *_: iter(self.log.of("training-decisions")))

    def versions(self) -> Versions:
        found = Versions()
        for checkpoint in self.log.of("checkpoints"):
            found.fold(checkpoint)
        return found

    def resumed_at(self) -> int:
        """Where a learner of the newest version begins to read."""
        newest = self.versions().newest(LIMITS.model)
        assert newest is not None
        return offsets_of(newest).get(0, 0)

    def learn(self, patch: pytest.MonkeyPatch) -> None:
        """From the newest version to the end of the log."""
        stop = Stop()
        patch.setattr(learner, "Reader", lambda _k, _c, _l, start: _Reader(self.read[start.get(0, 0) :], stop))
        with closing(reporter.BackgroundSender(self.settings.kafka, None, stop)) as box:  # type: ignore[arg-type]
            producer: Any = Producer(self.log)
            learner._Lineage(self.settings, None, producer, box, self.versions(), stop).train()  # type: ignore[arg-type]


class _Ends:
    """A consumer that knows where the labelled topic ends."""

    def __init__(self, end: int) -> None:
        self._end = end

    def __enter__(self) -> "_Ends":
        return self

    def __exit__(self, *_: object) -> None: ...

    def end_offsets(self, _topic: str) -> dict[int, int]:
        return {0: self._end}


class _Reader:
    """Hands over a few records at a time; asks to stop when there are no more."""

    def __init__(self, arrivals: list[Arrival], stop: Stop) -> None:
        self._batches = [arrivals[start : start + 3] for start in range(0, len(arrivals), 3)]
        self._stop = stop

    def next(self, timeout_s: float) -> list[Arrival]:
        if self._batches and timeout_s:
            return self._batches.pop(0)
        if timeout_s:  # nothing is left, and no group either
            self._stop.set()
        return []

    def is_behind(self) -> bool:
        return bool(self._batches)

    def close(self) -> None: ...


def check_nothing_is_ahead_of_its_version(world: World) -> None:
    """Whenever it died: what a version's offsets have passed is told, and nothing is told of versions that are not."""
    published = {each["version"]: each for each in world.log.of("checkpoints")}
    for decision in world.log.of("training-decisions"):
        assert decision["outcome"] == "dropped" or decision["checkpoint_version"] in published
    passed = world.resumed_at()
    dropped = {one["trajectory_id"] for one in world.log.of("training-decisions") if one["outcome"] == "dropped"}
    refused = {letter["offset"] for letter in world.log.of("dead-letters")}
    for arrival in world.read[:passed]:
        if arrival.dead_letter is not None:
            assert arrival.position[1] in refused
        if arrival.attempt is not None and arrival.attempt.trajectory_id in UNTRAINED:
            assert arrival.attempt.trajectory_id in dropped
    for version in published.values():
        verify(Path(version["uri"].removeprefix("file://")), version["files"])


def told(world: World) -> dict[str, Any]:
    """What the log holds in the end, however often something was said."""
    versions = world.versions()
    newest = versions.newest(LIMITS.model)
    assert newest is not None
    line = versions.lineage(newest)
    decisions = {one["event_id"]: one for one in world.log.of("training-decisions")}.values()
    return {
        "places": Counter(offset for each in line for update in each["inputs"] for offset in update["offsets"]),
        "weights": Path(newest["uri"].removeprefix("file://") + "/model.safetensors").read_text(),
        "versions": [(each["version"], each["updates"]) for each in line],
        "trained": sorted(
            (one["trajectory_id"], one["checkpoint_version"]) for one in decisions if one["outcome"] == "trained"
        ),
        "dropped": sorted((one["trajectory_id"], one["reason"]) for one in decisions if one["outcome"] == "dropped"),
        "updates": sorted({one["update"]: one["event_id"] for one in world.log.of("learner-updates")}.items()),
        "refused": {letter["event_id"] for letter in world.log.of("dead-letters")},
    }


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # no thread runs when it forks
def test_at_no_line_is_anything_lost_or_trained_on_twice(memory_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(memory_path, monkeypatch)
    lines = executed_lines(KILLED, lambda: world.learn(monkeypatch))
    expected = told(world)
    assert len(lines) > 120
    assert [number for number, _ in expected["versions"]] == [2, 1, 0]
    assert set(expected["places"].values()) == {1}
    assert len(expected["places"]) == len(expected["trained"]) == 8
    assert dict(expected["dropped"]) == UNTRAINED
    assert len(expected["refused"]) == 2
    assert world.resumed_at() > 0  # beyond the refused one, which no restart would see again
    reached = 0
    for line in lines:
        world.log.keep_first()
        reached += is_killed_at(line, KILLED, lambda: world.learn(monkeypatch))
        check_nothing_is_ahead_of_its_version(world)
        world.learn(monkeypatch)
        assert told(world) == expected, line
    assert reached > 0.9 * len(lines)  # whether some lines of waiting are come to is a matter of time

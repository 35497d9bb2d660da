"""Kill the learner at each line of reading, reporting and publishing: a restart has the same result."""

from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson
import pytest
from killed_lines import executed_lines, is_killed_at
from labelled_records import LIMITS, group_of, labelled
from safetensors.torch import save

from stepstream.config import LearnerSettings, Settings
from stepstream.core.process import Stop
from stepstream.learner import lineage_training, reporter
from stepstream.learner.data.attempt import Attempt
from stepstream.learner.data.reader import Arrival, arrival_of
from stepstream.learner.lineage import Versions, offsets_of
from stepstream.learner.model.checkpoint import describe, verify
from stepstream.topics.codec import CodecError
from stepstream.topics.consumer import Event
from stepstream.topics.events import Checkpoint, new_checkpoint
from stepstream.versions.shared_memory import SharedVersions

pytest_plugins = ["memory_folder"]

KILLED = (
    "learner/lineage_training.py", "learner/reporter.py", "learner/background_publisher.py", "learner/publish.py",
)  # fmt: skip
FIGURES = ("loss", "reward", "staleness_max", "clip_share", "effective_share", "tokens")
UNTRAINED = {"shown/0": "split", "alike/0": "no_variance", "alike/1": "no_variance"}
UNTRAINED |= {"odd/0": "invalid", "odd/1": "group_too_small"}
"""Drop reason of each trajectory that is not trained on."""


def labels() -> list[tuple[str, Any, CodecError | None]]:
    """Return the labelled topic: groups of two attempts for each version, some of them untrainable.

    The first entry is not a record; the first version's offsets pass it.
    """
    first = [record for n in range(2) for record in group_of(f"g{n}", 2)]
    first += [labelled("shown", 0, 1.0, split="eval"), *(labelled("alike", n, 1.0, versions=(1, 1)) for n in range(2))]
    first += [labelled("odd", 0, float("nan")), labelled("odd", 1, 1.0, versions=(1, 1))]
    second = [record for n in range(2, 4) for record in group_of(f"g{n}", 2, versions=(1, 1))]
    before, after = ([(record["group_id"] or "", record, None) for record in part] for part in (first, second))
    return [("bad", None, CodecError("malformed", "no record")), *before, *after]


class Log:
    """The topics that the learner writes, in a file that survives the killed process."""

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
    """Delivers as late as possible and in reverse order, since topics have no order among each other."""

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
    """A trainer whose weights are the names of the attempts it trained on."""

    lags = ()

    def __init__(self, trained: list[str]) -> None:
        self._trained = trained

    def limits(self, _model: str) -> Any:
        return LIMITS

    def update(self, _number: int, groups: Sequence[Sequence[Attempt]], _version: int) -> dict[str, float]:
        self._trained += [attempt.trajectory_id for group in groups for attempt in group]
        return dict.fromkeys(FIGURES, 0.5)

    @property
    def policy(self) -> "Weights":
        return self

    def take_base_from(self, _version: Path) -> None: ...

    def snapshot(self) -> "Weights":
        return Weights(list(self._trained))

    def write(self, folder: Path, **_: object) -> None:
        write_weights(folder, self._trained)

    def end_write(self) -> None: ...


def trained_in(folder: Path) -> list[str]:
    return (folder / "training/optimizer.safetensors").read_text().split()


def write_weights(folder: Path, trained: Sequence[str]) -> None:
    for part in ("weights", "training"):
        (folder / part).mkdir(parents=True)
    (folder / "weights/model.safetensors").write_bytes(save({}))
    (folder / "training/optimizer.safetensors").write_text(" ".join(trained))


class LearnerRun:
    """A log with a root version, and a learner that reads it to its end."""

    def __init__(self, data: Path, patch: pytest.MonkeyPatch) -> None:
        self.data, self.log = data, Log(data / "log")
        self.settings = Settings(
            learner=LearnerSettings(
                preset="tiny",
                model=LIMITS.model,
                checkpoints=str(data),
                group_size=2,
                groups_per_update=1,
                updates_per_checkpoint=2,
                staleness_bound=0,
            )
        )
        root = data / LIMITS.model / "0"
        write_weights(root, [])
        root_checkpoint = new_checkpoint(
            event_id="c0", occurred_at_us=0, model=LIMITS.model, version=0, uri=root.as_uri(), files=describe(root),
            weights_sha256="", code_version="",
        )  # fmt: skip
        self.log.append([("checkpoints", root_checkpoint)])
        self.read = [
            arrival_of(Event("labeled-trajectories", 0, offset, key, record, error), LIMITS)
            for offset, (key, record, error) in enumerate(labels())
        ]
        self.control: Any = SimpleNamespace(
            paused=False, rollout=None, taken_back=frozenset(), excluded_specs=frozenset()
        )
        patch.setattr(reporter, "EventProducer", lambda *_, **__: Producer(self.log))
        patch.setattr(lineage_training, "EventConsumer", lambda *_: _Ends(len(self.read)))
        patch.setattr(lineage_training, "trainer_for", lambda folder, *_: Weights(trained_in(folder)))
        patch.setattr(lineage_training, "read_decisions", lambda *_: iter(self.log.of("training-decisions")))
        patch.setattr(lineage_training, "read_alarms", lambda *_: iter(self.log.of("alarms")))

    def versions(self) -> Versions:
        versions = Versions()
        for checkpoint in self.log.of("checkpoints"):
            versions.fold(checkpoint)
        return versions

    def resume_offset(self) -> int:
        """Return the offset where a learner of the newest version starts to read."""
        newest = self.versions().newest(LIMITS.model)
        assert newest is not None
        return offsets_of(newest).get(0, 0)

    def learn(self, patch: pytest.MonkeyPatch) -> None:
        """Train from the newest version to the end of the log."""
        stop = Stop()
        patch.setattr(
            lineage_training, "open_reader", lambda _s, _c, _l, start: _Reader(self.read[start.get(0, 0) :], stop)
        )
        with closing(reporter.BackgroundSender(self.settings.kafka, None, stop)) as sender:  # type: ignore[arg-type]
            producer: Any = Producer(self.log)
            retention: Any = _KeepEverything()
            codec: Any = None
            shared = SharedVersions(self.settings.paths.shared_memory, self.settings.learner.model, 0)
            versions = self.versions()
            lineage_training.LineageTraining(
                self.settings, codec, producer, producer, sender, retention, shared, versions, self.control, stop
            ).train()


class _KeepEverything:
    """Retention without removals: its thread is tested with the broker."""

    def prune_after(self, _checkpoint: Checkpoint) -> None: ...


class _Ends:
    """A consumer that returns the end offset of the labelled topic."""

    def __init__(self, end: int) -> None:
        self._end = end

    def __enter__(self) -> "_Ends":
        return self

    def __exit__(self, *_: object) -> None: ...

    def end_offsets(self, _topic: str) -> dict[int, int]:
        return {0: self._end}


class _Reader:
    """Returns a few records at a time; requests the stop at the end."""

    def __init__(self, arrivals: list[Arrival], stop: Stop) -> None:
        self._batches = [arrivals[start : start + 3] for start in range(0, len(arrivals), 3)]
        self._stop = stop

    def next(self, timeout_s: float) -> list[Arrival]:
        if self._batches and timeout_s:
            return self._batches.pop(0)
        if timeout_s:  # no record and no group is left
            self._stop.set()
        return []

    def is_behind(self) -> bool:
        return bool(self._batches)

    def close(self) -> None: ...


def check_log(run: LearnerRun) -> None:
    """Check a log after a kill: records before a version's offsets have decisions, of published versions only."""
    published = {each["version"]: each for each in run.log.of("checkpoints")}
    for decision in run.log.of("training-decisions"):
        assert decision["outcome"] == "dropped" or decision["checkpoint_version"] in published
    passed = run.resume_offset()
    dropped = {one["trajectory_id"] for one in run.log.of("training-decisions") if one["outcome"] == "dropped"}
    rejected = {letter["offset"] for letter in run.log.of("dead-letters")}
    for arrival in run.read[:passed]:
        if arrival.dead_letter is not None:
            assert arrival.position[1] in rejected
        if arrival.attempt is not None and arrival.attempt.trajectory_id in UNTRAINED:
            assert arrival.attempt.trajectory_id in dropped
    for version in published.values():
        verify(Path(version["uri"].removeprefix("file://")), version["files"])


def final_log(run: LearnerRun) -> dict[str, Any]:
    """Return the content of the log without duplicate events."""
    versions = run.versions()
    newest = versions.newest(LIMITS.model)
    assert newest is not None
    line = versions.lineage(newest)
    decisions = {one["event_id"]: one for one in run.log.of("training-decisions")}.values()
    return {
        "positions": Counter(offset for each in line for update in each["inputs"] for offset in update["offsets"]),
        "weights": Path(newest["uri"].removeprefix("file://") + "/training/optimizer.safetensors").read_text(),
        "versions": [(each["version"], each["updates"]) for each in line],
        "trained": sorted(
            (one["trajectory_id"], one["checkpoint_version"]) for one in decisions if one["outcome"] == "trained"
        ),
        "dropped": sorted((one["trajectory_id"], one["reason"]) for one in decisions if one["outcome"] == "dropped"),
        "updates": sorted({one["update"]: one["event_id"] for one in run.log.of("learner-updates")}.items()),
        "rejected": {letter["event_id"] for letter in run.log.of("dead-letters")},
    }


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # no other thread runs at the fork
def test_a_kill_at_any_line_loses_nothing_and_trains_nothing_twice(
    memory_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = LearnerRun(memory_path, monkeypatch)
    lines = executed_lines(KILLED, lambda: run.learn(monkeypatch))
    expected = final_log(run)
    assert len(lines) > 120
    assert [number for number, _ in expected["versions"]] == [2, 1, 0]
    assert set(expected["positions"].values()) == {1}
    assert len(expected["positions"]) == len(expected["trained"]) == 8
    assert dict(expected["dropped"]) == UNTRAINED
    assert len(expected["rejected"]) == 2
    assert run.resume_offset() > 0  # after the invalid record, which no restart reads again
    reached = 0
    for line in lines:
        run.log.keep_first()
        reached += is_killed_at(line, KILLED, lambda: run.learn(monkeypatch))
        check_log(run)
        run.learn(monkeypatch)
        assert final_log(run) == expected, line
    assert reached > 0.9 * len(lines)  # some lines of waiting run only sometimes

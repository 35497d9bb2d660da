"""Copy a log to more partitions while its jobs run and the copy is killed; go on there as if nothing had happened.

The tests run in order: they are the steps of docs/operations.md.
"""

import os
import shutil
import signal
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import orjson
import pytest
from command_line import CommandResult, stepstream
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from log_reading import QUICK_END
from stack_fixtures import with_settings
from stack_world import World
from stream_records import make_ending, make_feedback, make_steps
from waiting import wait_for_value, wait_until

from stepstream.config import Settings, environment_of
from stepstream.embedded.addresses import isolated
from stepstream.embedded.stack import Stack
from stepstream.jobs.log_copy.copier import CopyRefused, LogCopier
from stepstream.topics import admin
from stepstream.topics.catalogue import ALARMS, TOPICS
from stepstream.topics.client import admin_client, client_config
from stepstream.topics.ids import now_us

JOBS = ("govern", "label", "measure")
PREFIX, PARTITIONS, MORE = "more.", 2, 5
COUNT, STEPS = 60, 3
COPIED = [name for name, topic in TOPICS.items() if topic.copied]
KILLED_COPY = """
import os, signal, sys
from stepstream.cli.main import main
from stepstream.jobs.log_copy import copier

copier._BATCH = 5
commit, left = copier.LogCopier._commit, 8

def killed(self, positions):
    global left
    left -= 1
    if not left and moment == "after":
        commit(self, positions)
    if not left:
        self._producer.flush()
        os.kill(os.getpid(), signal.SIGKILL)
    commit(self, positions)

copier.LogCopier._commit = killed
moment = sys.argv[1]
sys.argv = ["stepstream", "topics", "copy", "--from-prefix", ""]
main()
"""
"""Copies a few records a transaction; ends by SIGKILL before or after a commit."""


@pytest.fixture(scope="module")
def old(base_settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    wanted = with_settings(
        isolated(base_settings, tmp_path_factory.mktemp("old")),
        topics={"partitions": PARTITIONS},
        jobs={"session_timeout_s": 6.0},  # for so long, a stopped job stays a member of its group
    )
    with Stack(wanted, ["broker", "registry", *JOBS]) as stack:
        yield stack


@pytest.fixture(scope="module")
def new_settings(old: Stack, base_settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Settings:
    folder = tmp_path_factory.mktemp("new")
    return with_settings(
        isolated(base_settings, folder),
        kafka={"bootstrap": old.settings.kafka.bootstrap, "prefix": PREFIX},
        schema_registry={"url": old.settings.schema_registry.url},
        topics={"partitions": MORE},
    )


@pytest.fixture(scope="module")
def before(old: Stack) -> Iterator[World]:
    with World(old.settings) as world:
        yield world


def send_some(world: World, numbers: range) -> None:
    for number in numbers:
        name, user = f"t{number}", f"u{number % 7}" if number % 3 else None
        fields = {"group_id": f"g{number // 4}", "user": user, "at_us": now_us() - 600_000_000}
        world.send("steps", *make_steps(name, STEPS, **fields))  # type: ignore[arg-type]
        world.send("feedback", make_ending(name, STEPS, value=float(number % 2)))
    world.producer.flush()


def finish(world: World) -> CommandResult:
    return stepstream(world.settings, "topics", "copy", "--from-prefix", "", "--finish", "--json")


def wait_for_revisions(world: World, wanted: dict[str, int]) -> None:
    """Wait until the newest labels of trajectories have these revisions."""

    def found() -> dict[str, int]:
        revisions: dict[str, int] = {}
        for label in world.records("labeled-trajectories"):
            name = label["trajectory_id"]
            revisions[name] = max(revisions.get(name, 0), label["revision"])
        return {name: revisions.get(name, 0) for name in wanted}

    wait_for_value(found, wanted)


Raw = tuple[bytes, bytes | None, Any, Any]
"""Key, value, headers and timestamp of a record."""


def raw_by_topic(settings: Settings, topics: Sequence[str] = COPIED) -> dict[str, list[Raw]]:
    """Return the committed records of topics, in order inside a partition."""
    prefix = settings.kafka.prefix
    config = {"group.id": "test", "enable.partition.eof": True, "auto.offset.reset": "earliest"}
    consumer = Consumer(client_config(settings.kafka) | config | QUICK_END)
    listed = consumer.list_topics(timeout=10).topics
    partitions = [
        TopicPartition(prefix + topic, number, 0) for topic in topics for number in listed[prefix + topic].partitions
    ]
    consumer.assign(partitions)
    found: dict[str, list[Raw]] = {topic: [] for topic in topics}
    ended = 0
    while ended < len(partitions):
        for message in consumer.consume(500, 0.05):
            if message.error() is not None:
                ended += 1
            else:
                record = (message.key() or b"", message.value(), message.headers(), message.timestamp())
                found[(message.topic() or "").removeprefix(prefix)].append(record)
    consumer.close()
    return found


def raw(settings: Settings, topic: str) -> list[Raw]:
    """Return the committed records of one topic."""
    return raw_by_topic(settings, [topic])[topic]


def count(settings: Settings) -> int:
    """Return the number of committed records of all copied topics."""
    return sum(map(len, raw_by_topic(settings).values()))


def produce(settings: Settings, *records: tuple[bytes, bytes | None]) -> None:
    """Write records of `alarms`, a compacted topic with one partition that no process of these tests writes."""
    producer = Producer(client_config(settings.kafka))
    for key, value in records:
        producer.produce(settings.kafka.prefix + ALARMS, key=key, value=value)
    assert producer.flush(30.0) == 0


def compact(settings: Settings, begin: int) -> None:
    """Delete the records of `alarms` before an offset. No compaction could be awaited: it may take hours."""
    client = admin_client(settings.kafka)
    for policy in ("delete", "compact"):
        entry = ConfigEntry("cleanup.policy", policy, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, ALARMS, incremental_configs=[entry])
        [future] = client.incremental_alter_configs([resource]).values()
        future.result()
        if policy == "delete":
            [deleted] = client.delete_records([TopicPartition(ALARMS, 0, begin)]).values()
            assert deleted.result().low_watermark == begin


def by_key(records: list[tuple[bytes, bytes | None, Any, Any]]) -> dict[bytes, list[Any]]:
    found = defaultdict(list)
    for key, *rest in records:
        found[key].append(rest)
    return found


def test_a_copy_is_refused_before_its_topics_exist(old: Stack, new_settings: Settings, before: World) -> None:
    send_some(before, range(COUNT))
    before.send("steps", *make_steps("open", 4, at_us=now_us() - 60_000_000)[:2])
    before.producer.flush()
    produce(old.settings, (b"gone", b"1"), (b"deleted", b"2"), (b"deleted", None))
    wait_for_revisions(before, dict.fromkeys((f"t{number}" for number in range(COUNT)), 1))
    before.send_and_flush("feedback", make_feedback("t3", 0.0, number=1))  # a second revision
    before.run_command("consent", "set", "analyse", "--tenant", "default", "--user", "u2")
    with World(new_settings) as world:
        assert "topics apply" in world.run_command("topics", "copy", "--from-prefix", "", fails=True)
        world.run_command("topics", "apply")
        assert "is the prefix" in world.run_command("topics", "copy", "--from-prefix", PREFIX, fails=True)


def test_a_copy_is_killed_before_and_after_a_commit(old: Stack, new_settings: Settings, before: World) -> None:
    for number, moment in enumerate(("before", "after")):
        copies = count(new_settings)
        environment = {name: value for name, value in os.environ.items() if not name.startswith("STEPSTREAM_")}
        process = subprocess.run(
            [sys.executable, "-c", KILLED_COPY, moment], env=environment | environment_of(new_settings), timeout=120
        )
        assert process.returncode == -signal.SIGKILL
        assert copies < count(new_settings) < copies + 50
        send_some(before, range(COUNT + number, COUNT + number + 1))


def test_the_old_jobs_must_have_read_everything(old: Stack, new_settings: Settings, before: World) -> None:
    wait_for_revisions(before, {f"t{COUNT + 1}": 1, "t3": 2, "t2": 2})  # t2: of the consent
    with World(new_settings) as world:
        assert "members" in world.run_command("topics", "copy", "--from-prefix", "", "--finish", fails=True)
    # Everything so far is copied. The source deletes a key, and its compaction removes the tombstone too.
    produce(old.settings, (b"gone", None), (b"kept", b"3"))
    compact(old.settings, 4)
    old.stop_process("govern")
    before.send_and_flush("steps", *make_steps("late", 1, at_us=now_us() - 60_000_000))
    with World(new_settings) as world:
        wait_until(lambda: "to read" in finish(world).stderr, "the group of govern is empty")
    old.start_process("govern")
    old.wait_ready("govern")
    wait_until(
        lambda: any(step["trajectory_id"] == "late" for step in before.records("governed-steps")), "govern has read it"
    )
    settled = None
    while settled != (settled := count(old.settings)):
        pass
    for job in JOBS:
        old.stop_process(job)
    results: list[CommandResult] = []
    with World(new_settings) as world:

        def is_finished() -> bool:
            results.append(finish(world))
            return "members" not in results[-1].stderr

        wait_until(is_finished, "the jobs' groups are empty")
        done = orjson.loads(results[-1].stdout)
        assert done["lag"] == 0
        assert set(done["groups"]) == {"stepstream-govern", "stepstream-label"}
        assert "is finished" in world.run_command("topics", "copy", "--from-prefix", "", fails=True)


def test_every_record_is_copied_once_in_the_order_of_its_key(old: Stack, new_settings: Settings) -> None:
    source, copies = raw_by_topic(old.settings), raw_by_topic(new_settings)
    for topic in COPIED:
        assert topic == ALARMS or by_key(copies[topic]) == by_key(source[topic]), topic
    assert len(copies["labeled-trajectories"]) > COUNT
    assert raw(new_settings, "dead-letters") == raw(new_settings, "trajectory-stats") == []


def test_a_key_that_the_source_lost_without_a_tombstone_is_deleted(old: Stack, new_settings: Settings) -> None:
    assert [(key, value) for key, value, *_ in raw(old.settings, ALARMS)] == [(b"kept", b"3")]
    copies = {key: [value for value, *_ in records] for key, records in by_key(raw(new_settings, ALARMS)).items()}
    assert copies == {b"gone": [b"1", None], b"deleted": [b"2", None], b"kept": [b"3"]}


@pytest.fixture(scope="module")
def new(old: Stack, new_settings: Settings) -> Iterator[Stack]:
    # An operator keeps `paths.data`, but the old stack of this test still uses it.
    shutil.copytree(old.settings.paths.data / "secrets", new_settings.paths.data / "secrets", dirs_exist_ok=True)
    with Stack(new_settings, ["broker", "registry", *JOBS]) as stack:
        yield stack


@pytest.fixture(scope="module")
def after(new: Stack) -> Iterator[World]:
    with World(new.settings) as world:
        yield world


def sums(world: World, topic: str, dimensions: str, figures: str) -> dict[Any, Any]:
    """Return the sums of the newest statistics of each key, by their dimensions: the totals over partitions."""
    newest = {event.key: event.record for event in world.read(topic)}
    found: dict[Any, Any] = defaultdict(lambda: defaultdict(float))
    for record in newest.values():
        if record["scope"] != "trajectory":
            for figure in figures.split():
                found[tuple(record[name] for name in dimensions.split())][figure] += record[figure]
    return {key: {name: round(value, 6) for name, value in row.items()} for key, row in found.items()}


DIMENSIONS = "agent model policy_version harness_version split tool"
FIGURES = (
    "trajectories successes failures truncated steps errors tool_calls prompt_tokens response_tokens reward_sum "
    "duration_ms_sum"
)


def test_the_statistics_are_those_of_the_old_log(before: World, after: World) -> None:
    expected = sums(before, "trajectory-stats", DIMENSIONS, FIGURES)
    assert sum(row["trajectories"] for key, row in expected.items() if not key[-1]) >= COUNT
    wait_until(
        lambda: sums(after, "trajectory-stats", DIMENSIONS, FIGURES) == expected, "the sums over partitions are equal"
    )


def test_the_jobs_publish_nothing_again(old: Stack, new_settings: Settings, after: World) -> None:
    after.send_trajectories("marker")
    wait_for_revisions(after, {"marker": 1})
    for topic in ("governed-steps", "governed-feedback", "labeled-trajectories", "closures", "curation"):
        copies = Counter(key for key, *_ in raw(old.settings, topic))
        here = Counter(key for key, *_ in raw(new_settings, topic) if key != b"marker")
        assert here == copies, topic


def test_late_feedback_makes_the_next_revision(after: World) -> None:
    after.send_and_flush("feedback", make_feedback("t3", 1.0, number=2), make_feedback("t6", 1.0, number=1))
    wait_for_revisions(after, {"t3": 3, "t6": 2})


def test_a_trajectory_that_was_open_at_the_switch_is_one(after: World) -> None:
    after.send("steps", *make_steps("open", 4, at_us=now_us() - 60_000_000)[1:])  # one of them again
    after.send_and_flush("feedback", make_ending("open", 4))
    wait_for_revisions(after, {"open": 1})
    [label] = [label for label in after.records("labeled-trajectories") if label["trajectory_id"] == "open"]
    assert (label["complete"], label["success"], len(label["steps"])) == (True, True, 4)


def test_a_foreign_record_is_noticed_while_a_copy_runs_and_while_it_is_down(old: Stack, new_settings: Settings) -> None:
    settings = with_settings(new_settings, kafka={"prefix": "foreign."}, topics={"partitions": 1})
    admin.apply(settings)
    foreign = "something else writes to foreign.alarms"
    for _ in range(2):  # its own records are not foreign
        with LogCopier(settings, "") as copier:
            copier.start()
            copier.copy_all()
    with LogCopier(settings, "") as copier:
        copier.start()
        copier.check_untouched()
        produce(settings, (b"foreign", b"4"))
        with pytest.raises(CopyRefused, match=foreign):
            copier.check_untouched()
        produce(old.settings, (b"kept", b"5"))
        with pytest.raises(CopyRefused, match=foreign):
            copier.copy_all()
    with LogCopier(settings, "") as copier, pytest.raises(CopyRefused, match=foreign):
        copier.start()

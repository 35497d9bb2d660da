"""Test snapshots of state on a real broker: a lost state folder, a log cut by retention, and a kill while uploading."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from stack_fixtures import with_settings
from stack_world import World
from stream_records import as_governed, make_ending, make_feedback, make_steps
from waiting import wait_until

from stepstream.config import Settings
from stepstream.embedded.addresses import isolated
from stepstream.embedded.stack import Stack
from stepstream.jobs.erasure.delete_from_log import end_offsets
from stepstream.jobs.runtime.snapshot_manifest import decode_manifest
from stepstream.topics import admin
from stepstream.topics.catalogue import GOVERNED_FEEDBACK, GOVERNED_STEPS, LABELED_TRAJECTORIES
from stepstream.topics.client import admin_client

INTERVAL_S = 0.3
STEPS = 2


@pytest.fixture(scope="module")
def stack(
    base_settings: Settings,
    with_topics_and_tables: Callable[[Settings], Settings],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Stack]:
    settings = with_topics_and_tables(isolated(base_settings, tmp_path_factory.mktemp("snapshots")))
    settings = with_settings(settings, jobs={"snapshot_interval_s": INTERVAL_S})
    with Stack(settings, ["broker", "registry", "label"]) as running:
        yield running


@pytest.fixture(scope="module")
def world(stack: Stack) -> Iterator[World]:
    with World(stack.settings) as opened:
        yield opened


def send(world: World, names: list[str]) -> None:
    for name in names:
        world.send("governed-steps", *map(as_governed, make_steps(name, STEPS)))
        world.send("governed-feedback", as_governed(make_ending(name, STEPS)))
    world.producer.flush()


def revise(world: World, names: list[str]) -> None:
    for name in names:
        world.send("governed-feedback", as_governed(make_feedback(name, 0.0, number=1)))
    world.producer.flush()


def labels(world: World, names: list[str]) -> list[tuple[str, int, float]]:
    records = world.records(LABELED_TRAJECTORIES)
    return sorted((r["trajectory_id"], r["revision"], r["reward"]) for r in records if r["trajectory_id"] in names)


def wait_for_labels(world: World, names: list[str], expected: list[tuple[int, float]]) -> None:
    wanted = sorted((name, *one) for name in names for one in expected)
    wait_until(lambda: labels(world, names) == wanted, lambda: f"labels, of which there are {labels(world, names)}")


def snapshot_positions(stack: Stack) -> dict[tuple[str, int], int]:
    """Return the offsets of the newest snapshot of each partition."""
    found: dict[tuple[str, int], int] = {}
    for path in sorted((stack.settings.paths.data / "state-snapshots" / "label").glob("*/*/manifests/*.json")):
        manifest = decode_manifest(path.read_bytes())
        found |= {(topic, manifest.partition): offset for topic, offset in manifest.position.items()}
    return found


def wait_for_snapshots(stack: Stack, world: World) -> None:
    """Wait until snapshots hold all records."""
    offsets = end_offsets(world.settings, (GOVERNED_STEPS, GOVERNED_FEEDBACK))
    ends = {partition: end for partition, end in offsets.items() if end}
    wait_until(
        lambda: all(snapshot_positions(stack).get(one, 0) >= end for one, end in ends.items()),
        lambda: f"snapshots at {ends}: {snapshot_positions(stack)}",
    )


def lose_state(stack: Stack) -> None:
    stack.stop_process("label")
    shutil.rmtree(stack.settings.paths.data / "state")


def test_a_lost_folder_is_restored_though_retention_has_deleted_its_records(stack: Stack, world: World) -> None:
    before, after = [f"before-{n}" for n in range(16)], [f"after-{n}" for n in range(16)]
    send(world, before)
    wait_for_labels(world, before, [(1, 1.0)])
    wait_for_snapshots(stack, world)
    cut = [TopicPartition(topic, n, offset) for (topic, n), offset in snapshot_positions(stack).items()]
    client = admin_client(world.settings.kafka)
    for future in client.delete_records(cut).values():
        future.result()
    send(world, after)
    wait_for_labels(world, after, [(1, 1.0)])
    lose_state(stack)
    revise(world, before + after)
    stack.start_process("label")
    wait_for_labels(world, before + after, [(1, 1.0), (2, 0.0)])
    assert "restored snapshot" in (stack.settings.paths.data / "logs" / "label.log").read_text()


def test_a_kill_while_uploading_leaves_the_snapshots_before_it(stack: Stack, world: World) -> None:
    names = [f"killed-{n}" for n in range(16)]
    send(world, names)
    wait_for_labels(world, names, [(1, 1.0)])
    files = stack.settings.paths.data / "state-snapshots" / "label"

    def uploaded() -> set[Path]:
        return set(files.glob("*/*/files/*"))

    for number in range(3):
        known = uploaded()
        send(world, [f"more-{number}-{n}" for n in range(8)])
        wait_until(lambda known=known: uploaded() - known, "an upload has begun")  # type: ignore[misc]
        pid = stack.kill("label")
        state = stack.settings.paths.data / "state"
        state.rename(state.with_name(f"lost-{number}"))
        stack.wait_ready("label", after_pid=pid)
    revise(world, names)
    wait_for_labels(world, names, [(1, 1.0), (2, 0.0)])


def test_retention_of_the_input_topics_is_a_setting(stack: Stack) -> None:
    settings = with_settings(stack.settings, topics={"governed_retention_s": 86_400.0})
    changed = {(change.name, change.action) for change in admin.apply(settings)}
    expected = ("governed-steps", "governed-feedback", "closures")
    assert changed == {(name, "set retention.ms=86400000") for name in expected}
    assert admin.apply(settings) == []

"""Erase a person from a running stack: no copy of their texts or name remains, and others keep everything."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from command_line import stepstream
from confluent_kafka.admin import AdminClient
from erasure_world import ADA, BOB, TEXTS, World, contains
from scripted_upstream import ScriptedUpstream
from stack_fixtures import with_settings
from stream_records import make_ending, make_feedback, make_steps
from waiting import TIMEOUT_S, wait_until

from stepstream.config import Settings, environment_of
from stepstream.crypto.sealing import is_erased
from stepstream.embedded.addresses import isolated
from stepstream.embedded.stack import Stack
from stepstream.jobs.clickhouse.rows import TABLES
from stepstream.jobs.erasure.delete_from_log import end_offsets, wait_until_read
from stepstream.jobs.runtime.state import PartitionState
from stepstream.topics.catalogue import TOPICS
from stepstream.topics.client import client_config
from stepstream.topics.events import Step, new_checkpoint, new_message, new_update_input
from stepstream.topics.ids import new_event_id, now_us

PROCESSES = ("broker", "registry", "store", "govern", "label", "store-writer", "gateway")
UNNAMED = "the customer has churned"
"""Comment of an event about her trajectory that names no user."""


@pytest.fixture(scope="module")
def upstream() -> Iterator[ScriptedUpstream]:
    worker = ScriptedUpstream()
    worker.reply = lambda request: f"I note: {request['messages'][-1]['content']}"
    worker.start()
    yield worker
    worker.die()


@pytest.fixture(scope="module")
def stack(
    base_settings: Settings,
    with_topics_and_tables: Callable[[Settings], Settings],
    upstream: ScriptedUpstream,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Stack]:
    settings = with_topics_and_tables(isolated(base_settings, tmp_path_factory.mktemp("erasure")))
    settings = with_settings(settings, gateway={"upstreams": [upstream.url]})
    with Stack(settings, PROCESSES) as running:
        yield running


@pytest.fixture(scope="module")
def world(stack: Stack) -> Iterator[World]:
    with closing(World(stack)) as made:
        yield made


@pytest.fixture(scope="module")
def erased(world: World) -> dict[str, Any]:
    """Report of the erasure of one of two persons, who used the gateway and plain Kafka."""
    for user, name in ((ADA, "a"), (BOB, "b")):
        world.talk(user, f"{name}-gateway")
        message = new_message(role="user", content=TEXTS[user])
        for step in make_steps(f"{name}-plain", 2, user=user, messages=[message], error=TEXTS[user], at_us=now_us()):
            world.producer.send("steps", step["trajectory_id"], step)
        ending = make_ending(f"{name}-plain", 2, user=user, comment=TEXTS[user])
        world.producer.send("feedback", f"{name}-plain", ending)
    for step in shared_steps():
        world.producer.send("steps", "shared", step)
    world.producer.send("feedback", "shared", make_ending("shared", 2, user=BOB))
    origin = {"event_id": "x", "occurred_at_us": now_us()}
    world.producer.send_encoded("steps", "x", f"not Avro: {ADA}".encode(), origin)
    world.producer.flush(TIMEOUT_S)
    world.run_command("consent", "set", "train", "--tenant", "default", "--user", ADA)
    wait_until(lambda: world.value("SELECT count() FROM trajectories FINAL WHERE success") == 5)
    wait_until(lambda: world.value("SELECT count() FROM dead_letters FINAL") == 1)
    trained_on(world, "a-gateway", "demo")
    trained_on(world, "b-gateway", "other")
    trained_on(world, "shared", "both")
    assert_sealed(world)
    world.producer.send("feedback", "a-plain", make_feedback("a-plain", number=7, name="business", comment=UNNAMED))
    world.producer.flush(TIMEOUT_S)
    wait_until(lambda: world.value(f"SELECT count() FROM feedback FINAL WHERE comment = '{UNNAMED}'") == 1)
    load_spool(world)
    kill_an_erasure(world)
    done = dict(world.run_command("erase", "--subject", ADA))
    world.stack.start_process("gateway")
    wait_until(lambda: "a-spooled" in trajectories_on(world, "steps"))
    return done


def kill_an_erasure(world: World) -> None:
    """Run the command in a process that ends by SIGKILL once rows, keys and unsealed records are gone."""
    environment = os.environ | environment_of(world.settings)
    environment["KILL_BEFORE"] = f"stepstream.jobs.erasure.erase|time.sleep(_QUIET_S)|{__file__}"
    environment["PYTHONPATH"] = str(Path(__file__).parents[1] / "support/kill_site")
    command = [sys.executable, "-m", "stepstream.cli.main", "erase", "--subject", ADA]
    killed = subprocess.run(command, env=environment, capture_output=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr


def shared_steps() -> list[Step]:
    """Return the steps of a trajectory that Bob starts and Ada continues."""
    steps = make_steps("shared", 2, at_us=now_us())
    for step, user in zip(steps, (BOB, ADA), strict=True):
        step["user"], step["error"] = user, TEXTS[user]
        step["messages"] = [new_message(role="user", content=TEXTS[user])]
    return steps


def load_spool(world: World) -> None:
    """Stop the gateway with a call of Ada's in its spool, sealed under her key from before the erasure."""
    world.stack.stop_process("broker")
    world.talk(ADA, "a-spooled")
    world.stack.stop_process("gateway")
    spooled = [file.read_bytes() for file in (world.settings.paths.data / "spool").rglob("*") if file.is_file()]
    assert any(b"a-spooled" in content for content in spooled)
    assert not any(contains(content, ADA) for content in spooled)
    world.stack.start_process("broker")


def trajectories_on(world: World, topic: str) -> set[str]:
    return {event.record["trajectory_id"] for event in world.read(topic, world.plain) if event.record is not None}


def trained_on(world: World, trajectory: str, model: str) -> None:
    """Publish a version that trained on a trajectory, and a descendant."""
    [label] = [e for e in world.read("labeled-trajectories", world.opening) if e.record["trajectory_id"] == trajectory]
    for version, inputs in (
        (1, [new_update_input(update=1, partitions=[label.partition], offsets=[label.offset])]),
        (2, []),
    ):
        checkpoint = new_checkpoint(
            event_id=new_event_id(),
            occurred_at_us=now_us(),
            model=model,
            version=version,
            parent_version=version - 1 or None,
            uri="file:///gone",
            weights_sha256="",
            code_version="test",
            inputs=inputs,
        )
        world.producer.send("checkpoints", f"{model}@{version}", checkpoint)
    world.producer.flush(TIMEOUT_S)


def assert_sealed(world: World) -> None:
    """Check that the stack's records of persons are sealed and that its readers open them."""
    for topic in ("governed-steps", "governed-feedback", "labeled-trajectories"):
        events = world.read(topic, world.opening)
        assert {event.record["user"] for event in events} == {ADA, BOB}
        assert not any(contains(event.value, ADA) or contains(event.value, BOB) for event in events)


def test_the_command_reports_its_results(erased: dict[str, Any]) -> None:
    assert erased["keys_destroyed"] >= 1
    # The step and the feedback of the gateway, all her governed records, and her labels.
    assert erased["records_unreadable"] >= (1 + 1) + (3 + 1 + 2) + (2 + 1)
    assert set(erased["trajectories"]) == {"a-gateway", "a-plain", "shared"}
    assert erased["checkpoints"] == ["both@1", "demo@1"]
    assert erased["descendants"] == ["both@2", "demo@2"]
    assert set(erased["partitions_cut"]) == {"steps", "feedback"}
    assert erased["consents_forgotten"] == 1
    assert erased["left"] == {}


def test_feedback_without_a_user_is_erased_with_the_trajectory(world: World, erased: dict[str, Any]) -> None:
    assert world.value("SELECT count() FROM feedback WHERE startsWith(trajectory_id, 'a-')") == 0
    where = [topic for topic in TOPICS for event in world.read(topic, world.plain) if UNNAMED.encode() in event.value]
    assert where == [], "the event is sealed under the key of the user of its trajectory"


def test_a_shared_trajectory_loses_its_label_and_only_the_erased_persons_steps(
    world: World, erased: dict[str, Any]
) -> None:
    last: Any = {}

    def has_erased_label() -> bool:
        labels = [e.record for e in world.read("labeled-trajectories", world.opening)]
        shared = [record for record in labels if record["trajectory_id"] == "shared"]
        assert not any(record["user"] or record["sequences"] or record["conversations"] for record in shared)
        last.update(shared[-1])
        return "erased" in last["flags"] and last["seal_key"] is None

    wait_until(has_erased_label)
    assert last["revision"] > 1, "the erasure makes a new revision"
    steps = [e.record for e in world.read("governed-steps", world.opening) if e.record["trajectory_id"] == "shared"]
    assert [(step["user"], is_erased(step)) for step in steps] == [(BOB, False), (None, True)]
    assert world.value("SELECT count() FROM steps FINAL WHERE trajectory_id = 'shared'") == 1


def test_one_proof_names_what_both_attempts_removed(world: World, erased: dict[str, Any]) -> None:
    """The first attempt was killed by SIGKILL."""
    [proof] = world.run_command("erasures", "show", erased["request_id"])
    assert world.run_command("erasures", "show", erased["subject"])[0] == proof
    assert (len(proof["decisions"]), proof["keys_destroyed"], proof["consents_deleted"]) == (
        2,
        erased["keys_destroyed"],
        1,
    )
    assert {one["topic"] for one in proof["deleted"]} == {"steps", "feedback"}
    assert {"governed-steps", "governed-feedback"} <= {one["topic"] for one in proof["made_unreadable"]}
    assert sum(one["records"] for one in proof["made_unreadable"]) == erased["records_unreadable"]
    assert {"steps", "feedback", "trajectories"} <= proof["rows_deleted"].keys()
    assert sum(proof["rows_deleted"].values()) == erased["rows_deleted"]
    assert {one["place"] for one in proof["remaining"]} == {"compaction", "snapshots", "store"}
    [hidden] = [one for one in proof["remaining"] if one["place"] == "store"]
    assert hidden["records"] == erased["rows_hidden"] > 0
    assert hidden["until_us"] > proof["occurred_at_us"]
    assert ADA not in str(proof)
    assert stepstream(world.settings, "erasures", "index").status == 0
    assert world.value("SELECT uniqExact(topic) FROM person_index") == 5
    row = "SELECT (records_unreadable, rows_deleted['steps']) FROM erasure_proofs FINAL WHERE request_id = '{0}'"
    expected = (erased["records_unreadable"], proof["rows_deleted"]["steps"])
    wait_until(lambda: world.store.query(row.format(erased["request_id"])).result_rows == [(expected,)])


def test_no_topic_names_the_erased_person(world: World, erased: dict[str, Any]) -> None:
    for topic in TOPICS:
        for event in world.read(topic, world.opening):
            if topic == "consents":
                continue  # deleted, and gone with the next compaction
            assert not contains(event.value, ADA), topic
            assert ADA not in str(event.record), topic
            assert TEXTS[ADA] not in str(event.record), topic
            assert ADA not in event.key


def test_the_erased_persons_consent_is_deleted(world: World, erased: dict[str, Any]) -> None:
    assert [entry for entry in world.run_command("consent", "list") if entry["user"] == ADA] == []


def test_no_table_names_the_erased_person(world: World, erased: dict[str, Any]) -> None:
    for table in TABLES:
        rows = world.store.query(f"SELECT toString(tuple(*)) FROM {table}").result_rows
        assert not any(ADA in row or TEXTS[ADA] in row for (row,) in rows), table
    unerased = "SELECT count() FROM trajectories WHERE startsWith(trajectory_id, 'a-') AND NOT has(flags, 'erased')"
    assert world.value(unerased) == 0


def hidden_rows(world: World, table: str) -> int:
    """Return the number of rows in the active parts that no query finds."""
    stored = "SELECT sum(rows) FROM system.parts WHERE active AND database = currentDatabase() AND table = '{0}'"
    return int(world.value(stored.format(table))) - int(world.value(f"SELECT count() FROM {table}"))


def test_a_rewriting_removes_the_hidden_rows_from_the_parts(world: World, erased: dict[str, Any]) -> None:
    assert hidden_rows(world, "steps") > 0
    assert {"steps", "step_contents", "feedback"} <= world.run_command("erasures", "rewrite")["parts"].keys()
    for table in ("steps", "step_contents", "feedback", "trajectories"):
        assert hidden_rows(world, table) == 0, table
    assert world.run_command("erasures", "rewrite")["parts"] == {}


def test_no_file_names_the_erased_person(world: World, erased: dict[str, Any]) -> None:
    data = world.settings.paths.data
    for folder in ("logs", "spool", "secrets", "erasures"):
        for file in filter(Path.is_file, (data / folder).rglob("*")):
            assert not contains(file.read_bytes(), ADA), file


def test_the_other_person_keeps_everything(world: World, erased: dict[str, Any]) -> None:
    counts = (
        "SELECT (count(), countIf(user = '{0}')) FROM steps FINAL WHERE startsWith(trajectory_id, 'b-')",
        "SELECT (count(), countIf(user = '{0}')) FROM feedback FINAL WHERE startsWith(trajectory_id, 'b-')",
        "SELECT (count(), countIf(user = '{0}')) FROM trajectories FINAL WHERE startsWith(trajectory_id, 'b-')",
    )
    assert [world.value(query.format(BOB)) for query in counts] == [(3, 3), (2, 2), (2, 2)]
    for topic in ("governed-steps", "governed-feedback", "labeled-trajectories"):
        records = [event.record for event in world.read(topic, world.opening)]
        assert all(record["user"] == BOB for record in records if record["trajectory_id"].startswith("b-"))
        adas = [record for record in records if record["trajectory_id"].startswith("a-")]
        # A label with the flag `erased` has no content to seal.
        assert all(is_erased(record) or "erased" in record["flags"] for record in adas)
        assert not any(record["user"] for record in adas)
    # Later records of the same person are kept.
    world.talk(ADA, "a-again")
    wait_until(lambda: world.value("SELECT count() FROM steps WHERE trajectory_id = 'a-again'") == 1)
    assert world.value(f"SELECT countIf(user = '{ADA}') FROM steps WHERE trajectory_id = 'a-again'") == 1


def test_a_second_erasure_covers_only_later_records(world: World, erased: dict[str, Any]) -> None:
    again = world.run_command("erase", "--subject", ADA, "--rewrite")
    assert set(again["trajectories"]) == {"a-gateway", "a-plain", "shared", "a-spooled", "a-again"}
    assert (again["partitions_cut"], again["checkpoints"]) == ({}, ["both@1", "demo@1"])
    assert again["rows_deleted"] > again["rows_hidden"] == 0
    [proof] = world.run_command("erasures", "show", again["request_id"])
    assert "store" not in {one["place"] for one in proof["remaining"]}

    def nothing_is_left() -> bool:  # rows of the labels without content may arrive after the second erasure
        third = world.run_command("erase", "--subject", ADA)
        assert third["keys_destroyed"] == 0
        return bool(third["rows_deleted"] == 0)

    wait_until(nothing_is_left)


def test_late_unsealed_records_are_audited_and_erased_next_time(world: World, erased: dict[str, Any]) -> None:
    [late] = make_steps("a-late", 1, user=ADA, messages=[new_message(role="user", content=TEXTS[ADA])])
    world.producer.send("steps", "a-late", late)
    world.producer.flush(TIMEOUT_S)
    audited = (
        "SELECT count() FROM governance_audit WHERE trajectory_id = 'a-late' AND mapContains(found, 'erased:late')"
    )
    wait_until(lambda: world.value(audited) == 1)
    assert "a-late" not in trajectories_on(world, "governed-steps")
    assert set(world.run_command("erase", "--subject", ADA)["partitions_cut"]) == {"steps"}
    assert "a-late" not in trajectories_on(world, "steps")


def test_reading_the_log_again_restores_no_erased_row(world: World, erased: dict[str, Any]) -> None:
    topics = ("governed-steps", "governed-feedback", "labeled-trajectories")
    world.stack.stop_process("store-writer")
    admin = AdminClient(client_config(world.settings.kafka))

    def forgotten() -> bool:
        [future] = admin.delete_consumer_groups(["stepstream-store"]).values()
        return future.exception() is None

    wait_until(forgotten)  # a group is deleted once its last member has timed out
    world.stack.start_process("store-writer")
    wait_until_read(world.settings, "store", end_offsets(world.settings, topics), TIMEOUT_S)
    test_no_table_names_the_erased_person(world, erased)
    steps_of_bob = "SELECT count() FROM steps FINAL WHERE startsWith(trajectory_id, 'b-')"
    assert world.value(steps_of_bob) == 3


def test_a_stricter_consent_makes_stored_labels_untrainable(world: World, erased: dict[str, Any]) -> None:
    world.run_command("consent", "set", "analyse", "--tenant", "default", "--user", BOB)
    stored = "SELECT count() FROM trajectories FINAL WHERE startsWith(trajectory_id, 'b-') AND consent = 'analyse'"
    wait_until(lambda: world.value(stored + " AND NOT trainable") == 2)
    newest: dict[str, Any] = {}
    for event in world.read("labeled-trajectories", world.opening):
        newest[event.record["trajectory_id"]] = event.record
    assert not any(newest[name]["trainable"] or newest[name]["sequences"] for name in ("b-gateway", "b-plain"))


def test_no_job_state_names_the_erased_person(world: World, erased: dict[str, Any]) -> None:
    """This test is the last one: it stops the jobs, which hold the state open."""
    entries = 0
    for job in ("govern", "label"):
        world.stack.stop_process(job)
        for folder in sorted((world.settings.paths.data / "state" / job).iterdir()):
            with closing(PartitionState(folder)) as state:
                for key, value in state.scan(b""):
                    entries += 1
                    assert not contains(key + value, ADA), job
                    if job == "label" and key.startswith(b"s"):
                        record = world.opening.decode("governed-steps", value)
                        assert ADA not in str(record)
    assert entries > 0

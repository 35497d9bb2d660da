"""Test decisions about stored trajectories: consent, holds, releases, near-duplicates, replay, judge."""

from collections.abc import Callable, Iterator
from typing import Any

import orjson
import pytest
from command_line import stepstream
from scripted_judge import reply, serve_replies
from stack_fixtures import with_settings
from stack_world import World
from stream_records import make_steps
from waiting import wait_until

from stepstream.config import Settings
from stepstream.embedded.addresses import isolated
from stepstream.embedded.stack import Stack
from stepstream.jobs.governance.consent import consent_key
from stepstream.topics.events import new_consent_change, new_message, new_policy
from stepstream.topics.ids import new_event_id, now_us

PROCESSES = ["broker", "registry", "store", "govern", "label", "store-writer", "curate", "judge"]


@pytest.fixture(scope="module")
def judge() -> Iterator[tuple[str, list[Any]]]:
    with serve_replies((200, reply('{"score": 0.75}'))) as judge:
        yield judge


@pytest.fixture(scope="module")
def stack(
    base_settings: Settings,
    with_topics_and_tables: Callable[[Settings], Settings],
    judge: tuple[str, list[Any]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Stack]:
    settings = with_settings(
        with_topics_and_tables(isolated(base_settings, tmp_path_factory.mktemp("curation"))),
        stack={"more": ["curate", "judge"]},
        judge={"url": judge[0], "model": "scripted", "per_minute": 6000.0, "agents": ["judged"]},
    )
    with Stack(settings, PROCESSES) as running:
        yield running


class Curated(World):
    """A stack in which people and jobs decide about trajectories."""

    def put_policy(self, tenant: str, version: int, document: str) -> None:
        """Publish a version of a tenant's policy."""
        record = new_policy(
            event_id=new_event_id(), occurred_at_us=now_us(), tenant=tenant, version=version, document=document
        )
        self.send_and_flush("policies", record, key=tenant)

    def wait_for_state(self, name: str, revision: int, consent: str, trainable: bool, flags: list[str]) -> None:
        """Wait until a trajectory's newest row has these values."""
        self.wait_for_trajectory(name, revision=revision, consent=consent, trainable=trainable, flags=flags)


@pytest.fixture(scope="module")
def world(stack: Stack) -> Iterator[Curated]:
    with Curated(stack.settings) as opened:
        yield opened


def test_a_person_holds_and_releases_a_trajectory(world: Curated) -> None:
    world.send_trajectories("held", agent="held")
    world.wait_for_state("held", 1, "train", True, [])
    world.run_command("quarantine", "hold", "held", "--reason", "strange", "--by", "ann")
    world.wait_for_state("held", 2, "train", False, ["held:strange"])
    listed = world.run_json("quarantine", "list", "--reason", "strange")
    assert [(row["trajectory_id"], row["reasons"], row["by"]) for row in listed] == [("held", ["strange"], "ann")]
    released = stepstream(world.settings, "quarantine", "release", "held", "hled", "--by", "bob")
    assert (released.status, released.stderr.splitlines()[-1][:16]) == (0, "no label of hled")
    world.wait_for_state("held", 3, "train", True, ["released"])
    assert world.run_json("quarantine", "list", "--reason", "strange") == []


def test_a_consent_change_revises_stored_trajectories_once(stack: Stack, world: Curated) -> None:
    world.send_trajectories("anns", user="ann@example.com")
    world.send_trajectories("bobs", user="bob@example.com")
    for name in ("anns", "bobs"):
        world.wait_for_state(name, 1, "train", True, [])
    change = new_consent_change(
        event_id=new_event_id(), occurred_at_us=now_us(), tenant="default", user="ann@example.com", consent="analyse"
    )
    world.send_and_flush("consents", change, key=consent_key("default", "ann@example.com", None))
    world.wait_for_state("anns", 2, "analyse", False, ["consent:analyse"])
    # The restarted job does not publish the change again.
    stack.stop_process("label")
    stack.start_process("label")
    world.run_command("quarantine", "hold", "bobs", "--by", "ann")
    world.wait_for_state("bobs", 2, "train", False, ["held:by_hand"])
    world.wait_for_state("anns", 2, "analyse", False, ["consent:analyse"])


def test_near_duplicates_beyond_the_cap_are_held_once(stack: Stack, world: Curated) -> None:
    world.put_policy("near", 1, "[near_duplicates]\ncap = 1\n")
    text = new_message(role="user", content=" ".join(f"word{number}" for number in range(40)))
    held_count = (
        "SELECT count() FROM trajectories FINAL WHERE tenant = 'near' AND arrayExists(f -> f LIKE 'held:near%', flags)"
    )
    # The policy and the steps arrive on different topics: labels have signatures only once the policy has arrived.
    numbers = iter(range(1000))

    def held_after_another_copy() -> int:
        world.send_trajectories(f"near-{next(numbers)}", tenant="near", messages=[text])
        return int(world.value(held_count))

    wait_until(held_after_another_copy)
    decision_count = "SELECT count() FROM curation FINAL WHERE by = 'curate@1'"
    pid = stack.kill("curate")
    stack.wait_ready("curate", after_pid=pid)
    before = world.value(decision_count)
    world.send_trajectories("near-last", tenant="near", messages=[text])
    world.wait_for_rows("SELECT trainable FROM trajectories FINAL WHERE trajectory_id = 'near-last'", [(False,)])
    # Copies sent just before the kill are held too, and no trajectory is decided twice.
    admitted_count = "SELECT count() FROM trajectories FINAL WHERE tenant = 'near' AND trainable"
    assert world.rows("SELECT uniqExact(trajectory_id) = count() FROM curation FINAL WHERE by = 'curate@1'") == [
        (True,)
    ]
    wait_until(lambda: world.value(decision_count) > before)  # of another topic than the trajectory's row
    assert world.value(admitted_count) >= 1


def test_a_replay_governs_stored_steps_under_the_newest_policy(world: Curated) -> None:
    world.send_trajectories("old-1", "old-2", tenant="replayed")
    for name in ("old-1", "old-2"):
        world.wait_for_state(name, 1, "train", True, [])
    world.put_policy("replayed", 4, '[consent]\nmaximum = "analyse"\n')
    arguments = ("replay", "--topic", "steps", "--into", "governed-steps")
    dry = world.run_json(*arguments, "--dry-run")
    assert dry["governed"] >= 4  # plus steps that other tests sent before their policy
    done = world.run_json(*arguments)
    assert done == dry
    for name in ("old-1", "old-2"):
        query = f"SELECT consent, trainable FROM trajectories FINAL WHERE trajectory_id = '{name}' AND revision > 1"
        world.wait_for_rows(query, [("analyse", False)])
    again = world.run_json(*arguments)
    assert (again["governed"], again["known"]) == (0, done["known"] + done["governed"])
    rows = "SELECT count(), min(governed_by), max(governed_by) FROM steps FINAL WHERE tenant = 'replayed'"
    world.wait_for_rows(rows, [(4, 4, 4)])


def test_the_judge_scores_a_step_by_the_users_next_message(world: Curated, judge: tuple[str, list[Any]]) -> None:
    steps = make_steps("talk", 3, agent="judged", user="ann@example.com")
    for index, step in enumerate(steps):
        step["messages"] = [new_message(role="user", content=f"message {index}")]
    world.send_and_flush("steps", *steps)
    scores = (
        "SELECT step_index, value, consent FROM feedback FINAL WHERE name = 'shadow.next_state' ORDER BY step_index"
    )
    # An earlier test lowered Ann's consent to `analyse`.
    world.wait_for_rows(scores, [(0, 0.75, "analyse"), (1, 0.75, "analyse")])
    reactions = [orjson.loads(body["messages"][1]["content"])["reaction"] for _, _, body in judge[1]]
    assert sorted(reactions) == ["message 1", "message 2"]

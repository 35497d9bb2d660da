"""Decisions about stored trajectories, by real processes: consent, holds, releases, near-duplicates, replay, judge."""

from collections.abc import Callable, Iterator
from typing import Any

import orjson
import pytest
from command_line import stepstream
from scripted_judge import reply, served
from stack_fixtures import changed
from stack_world import World
from stream_records import make_steps
from waiting import until

from stepstream.config import Settings
from stepstream.embedded.addresses import isolated
from stepstream.embedded.stack import Stack
from stepstream.jobs.governance.consent import consent_key
from stepstream.topics.events import new_consent_change, new_message, new_policy
from stepstream.topics.ids import new_event_id, now_us

PROCESSES = ["broker", "registry", "store", "govern", "label", "store-writer", "curate", "judge"]


@pytest.fixture(scope="module")
def judge() -> Iterator[tuple[str, list[Any]]]:
    with served((200, reply('{"score": 0.75}'))) as judge:
        yield judge


@pytest.fixture(scope="module")
def stack(
    base_settings: Settings,
    with_topics: Callable[[Settings], Settings],
    judge: tuple[str, list[Any]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Stack]:
    settings = changed(
        with_topics(isolated(base_settings, tmp_path_factory.mktemp("curation"))),
        stack={"more": ["curate", "judge"]},
        judge={"url": judge[0], "model": "scripted", "per_minute": 6000.0, "agents": ["judged"]},
    )
    with Stack(settings, PROCESSES) as running:
        yield running


class Curated(World):
    """A stack in which people and jobs decide about trajectories."""

    def policy(self, tenant: str, version: int, document: str) -> None:
        """A version of a tenant's policy."""
        record = new_policy(
            event_id=new_event_id(), occurred_at_us=now_us(), tenant=tenant, version=version, document=document
        )
        self.put("policies", record, key=tenant)

    def state(self, name: str, revision: int, consent: str, trainable: bool, flags: list[str]) -> None:
        """Waits until a trajectory's newest row says this."""
        self.becomes(name, revision=revision, consent=consent, trainable=trainable, flags=flags)


@pytest.fixture(scope="module")
def world(stack: Stack) -> Iterator[Curated]:
    with Curated(stack.settings) as opened:
        yield opened


def test_a_person_holds_and_releases(world: Curated) -> None:
    world.tell("held", agent="held")
    world.state("held", 1, "train", True, [])
    world.command("quarantine", "hold", "held", "--reason", "strange", "--by", "ann")
    world.state("held", 2, "train", False, ["held:strange"])
    listed = world.facts("quarantine", "list", "--reason", "strange")
    assert [(row["trajectory_id"], row["reasons"], row["by"]) for row in listed] == [("held", ["strange"], "ann")]
    released = stepstream(world.settings, "quarantine", "release", "held", "hled", "--by", "bob")
    assert (released.status, released.stderr.splitlines()[-1][:16]) == (0, "no label of hled")
    world.state("held", 3, "train", True, ["released"])
    assert world.facts("quarantine", "list", "--reason", "strange") == []


def test_a_change_of_consent_reaches_what_is_stored_and_what_comes(stack: Stack, world: Curated) -> None:
    world.tell("mine", user="ann@example.com")
    world.tell("other", user="bob@example.com")
    for name in ("mine", "other"):
        world.state(name, 1, "train", True, [])
    change = new_consent_change(
        event_id=new_event_id(), occurred_at_us=now_us(), tenant="default", user="ann@example.com", consent="analyse"
    )
    world.put("consents", change, key=consent_key("default", "ann@example.com", None))
    world.state("mine", 2, "analyse", False, ["consent:analyse"])
    # A job that starts anew, without what it kept, knows and does not say it again.
    stack.stop_process("label")
    stack.start_process("label")
    world.command("quarantine", "hold", "other", "--by", "ann")
    world.state("other", 2, "train", False, ["held:by_hand"])
    world.state("mine", 2, "analyse", False, ["consent:analyse"])


def test_copies_beyond_the_cap_are_held_and_stay_decided(stack: Stack, world: Curated) -> None:
    world.policy("near", 1, "[near_duplicates]\ncap = 1\n")
    text = new_message(role="user", content=" ".join(f"word{number}" for number in range(40)))
    held = (
        "SELECT count() FROM trajectories FINAL WHERE tenant = 'near' AND arrayExists(f -> f LIKE 'held:near%', flags)"
    )
    # The policy reaches label by another way than the steps: until it has, there is no signature.
    numbers = iter(range(1000))

    def another() -> int:
        world.tell(f"near-{next(numbers)}", tenant="near", messages=[text])
        return int(world.one(held))

    until(another)
    decided = "SELECT count() FROM curation FINAL WHERE by = 'curate@1'"
    pid = stack.kill("curate")
    stack.wait_ready("curate", after_pid=pid)
    before = world.one(decided)
    world.tell("near-last", tenant="near", messages=[text])
    world.shows("SELECT trainable FROM trajectories FINAL WHERE trajectory_id = 'near-last'", [(False,)])
    # What was told between the last look and the kill is held too; nobody is held twice, or let in before and held now.
    admitted = "SELECT count() FROM trajectories FINAL WHERE tenant = 'near' AND trainable"
    assert world.rows("SELECT uniqExact(trajectory_id) = count() FROM curation FINAL WHERE by = 'curate@1'") == [
        (True,)
    ]
    assert world.one(decided) > before
    assert world.one(admitted) >= 1


def test_history_is_governed_anew_under_a_new_policy(world: Curated) -> None:
    world.tell("old-1", "old-2", tenant="replayed")
    for name in ("old-1", "old-2"):
        world.state(name, 1, "train", True, [])
    world.policy("replayed", 4, '[consent]\nmaximum = "analyse"\n')
    arguments = ("replay", "--topic", "steps", "--into", "governed-steps")
    dry = world.facts(*arguments, "--dry-run")
    assert dry["governed"] >= 4  # and those of other tests that came before their policy
    done = world.facts(*arguments)
    assert done == dry
    for name in ("old-1", "old-2"):
        query = f"SELECT consent, trainable FROM trajectories FINAL WHERE trajectory_id = '{name}' AND revision > 1"
        world.shows(query, [("analyse", False)])
    again = world.facts(*arguments)
    assert (again["governed"], again["known"]) == (0, done["known"] + done["governed"])
    rows = "SELECT count(), uniqExact(source_event_id), max(policy_version) FROM steps FINAL WHERE tenant = 'replayed'"
    world.shows(rows, [(8, 4, 4)])


def test_the_judge_scores_a_step_by_what_the_user_said_next(world: Curated, judge: tuple[str, list[Any]]) -> None:
    steps = make_steps("talk", 3, agent="judged", user="ann@example.com")
    for index, step in enumerate(steps):
        step["messages"] = [new_message(role="user", content=f"said {index}")]
    world.put("steps", *steps)
    scores = (
        "SELECT step_index, value, consent FROM feedback FINAL WHERE name = 'shadow.next_state' ORDER BY step_index"
    )
    # Ann's consent was lowered above: it may be counted, not learned from.
    world.shows(scores, [(0, 0.75, "analyse"), (1, 0.75, "analyse")])
    asked = [orjson.loads(body["messages"][1]["content"])["reaction"] for _, _, body in judge[1]]
    assert sorted(asked) == ["said 1", "said 2"]

"""A reward specification from its file to the rows, by real processes: put up, late feedback, taken back, a new one."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from click.testing import CliRunner
from stack_fixtures import changed
from stack_world import World
from stream_records import make_ending, make_feedback, make_steps

from stepstream.cli.main import cli
from stepstream.config import Settings, environment_of
from stepstream.embedded.addresses import isolated
from stepstream.embedded.stack import Stack
from stepstream.topics.events import new_reward_specification
from stepstream.topics.ids import new_event_id, now_us

PROCESSES = ["broker", "registry", "store", "govern", "label", "store-writer"]
SPEC = """
name = "shop"
environments = ["shop-*"]
reward_bounds = [-1.0, 2.0]
cap_malformed = true
[[component]]
name = "outcome"
feedback = "outcome"
source = "environment"
outcome = true
[[component]]
name = "thumbs"
feedback = "thumbs"
weight = 0.5
bounds = [-1.0, 1.0]
[[component]]
name = "tests"
feedback = "tests"
source = "test"
required = true
wait_s = 1
"""


class Rewarded(World):
    """A stack whose reward specifications are put up while it runs."""

    def has_components(self, name: str, columns: str, expected: list[tuple[Any, ...]]) -> None:
        """Waits until the newest label of a trajectory has these components."""
        of = f"current_reward_components WHERE trajectory_id = '{name}'"
        self.shows(f"SELECT {columns} FROM {of} ORDER BY name", expected)

    def rewards(self, *words: str, fails: bool = False) -> str:
        """What `stepstream rewards WORDS` prints."""
        done = CliRunner().invoke(cli, ["rewards", *words], env=environment_of(self.settings))
        assert (done.exit_code != 0) == fails, done.output
        return done.output


@pytest.fixture(scope="module")
def world(
    base_settings: Settings, with_topics: Callable[[Settings], Settings], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Rewarded]:
    settings = changed(with_topics(isolated(base_settings, tmp_path_factory.mktemp("rewards"))))
    with Stack(settings, PROCESSES) as running, Rewarded(running.settings) as opened:
        yield opened


def test_a_specification_rules_and_late_truth_and_new_versions_revise(world: Rewarded, tmp_path: Path) -> None:
    file = tmp_path / "shop.toml"
    file.write_text(SPEC)
    put = orjson.loads(world.rewards("put", str(file), "--json"))
    assert (put["name"], put["version"], put["changed"], put["environments"]) == ("shop", 1, True, ["shop-*"])
    assert orjson.loads(world.rewards("put", str(file), "--json"))["changed"] is False
    spec = f"shop@{put['digest']}"

    # The specification reaches label by another way than the steps: until it has, the built-in one rules.
    world.send("steps", *make_steps("t", 2, environment="shop-1"))
    world.put("feedback", make_ending("t", 2))
    # Partial at once, or already given up: one second is waited for `tests`.
    given_up = {"reward_spec": spec, "reward_spec_version": 1, "reward": 1.0, "pending": [], "flags": ["missing:tests"]}
    world.becomes("t", **given_up, trainable=True)
    world.shows("SELECT reason, components FROM closures FINAL", [("waited", ["tests"])])
    [(first,)] = world.rows("SELECT revision FROM trajectories FINAL WHERE trajectory_id = 't'")

    world.put("feedback", make_feedback("t", 1.0, name="tests", source="test", number=1))
    world.becomes("t", revision=first + 1, reward=2.0, flags=[], trainable=True)
    world.put("feedback", make_feedback("t", 0.0, source="user", number=2))  # not theirs to say
    world.becomes("t", revision=first + 2, reward=2.0, success=True, flags=["wrong_source:outcome"])
    world.put("feedback", make_feedback("t", -3.0, name="thumbs", source="user", number=3))
    world.becomes("t", revision=first + 3, reward=1.5)
    given = [
        ("outcome", "term", "environment", 1.0, 1.0),
        ("tests", "term", "test", 1.0, 1.0),
        ("thumbs", "term", "user", -1.0, 0.5),
    ]
    world.has_components("t", "name, kind, source, value, weight", given)
    thumbs = make_feedback("t", number=3)["event_id"]
    world.put("feedback", make_feedback("t", None, name="thumbs", number=4, retracts=thumbs))
    world.becomes("t", revision=first + 4, reward=2.0)
    world.has_components("t", "name", [("outcome",), ("tests",)])
    kept = "SELECT countIf(name = 'thumbs'), uniqExact(revision) FROM reward_components FINAL WHERE trajectory_id = 't'"
    world.shows(kept, [(1, first + 4)])

    file.write_text(SPEC.replace("weight = 0.5", "weight = 0.25").replace('feedback = "tests"', 'feedback = "units"'))
    assert "version 2 of shop applies to all agents in shop-* now" in world.rewards("put", str(file))
    # Nothing gave `units`: as `tests` was waited for long enough, so is it.
    world.becomes("t", reward_spec_version=2, reward=1.0, pending=[], trainable=True)
    listed = orjson.loads(world.rewards("list", "--json"))
    assert [(row["name"], row["version"]) for row in listed] == [("shop", 2)]
    assert 'feedback = "units"' in world.rewards("show", "shop")
    assert "published: shop" in world.rewards("show", "nothing", fails=True)
    stored = [(1, ["shop-*"]), (2, ["shop-*"])]
    world.shows("SELECT version, environments FROM reward_specs FINAL ORDER BY version", stored)
    rates = "SELECT component, sum(n) FROM component_rates WHERE environment = 'shop-1' GROUP BY component"
    world.shows(rates, [("outcome", 1)])


def test_a_version_that_cannot_be_read_is_refused_and_stops_nobody(world: Rewarded) -> None:
    document = "name = 'shop'\n[[component]]\nname = 'hints'\nfeedback = 'shadow.hints'\n"  # it would be paid
    bad = new_reward_specification(
        event_id=new_event_id(), occurred_at_us=now_us(), name="shop", version=3, digest="", document=document
    )
    world.put("reward-specs", bad, key="shop")
    world.shows("SELECT topic, error FROM dead_letters FINAL", [("reward-specs", "invalid")])
    [(reason,)] = world.rows("SELECT reason FROM dead_letters FINAL")
    assert "feedback named `shadow.…` must not count" in reason
    world.send("steps", *make_steps("after", 1, environment="shop-3"))
    world.put("feedback", make_ending("after", 1))
    world.becomes("after", reward_spec_version=2, reward=1.0)
    assert [row["version"] for row in orjson.loads(world.rewards("list", "--json"))] == [2]


def test_what_no_specification_names_has_the_one_of_the_settings(world: Rewarded) -> None:
    world.send("steps", *make_steps("elsewhere", 1, environment="bank"))
    world.put("feedback", make_ending("elsewhere", 1))
    world.becomes("elsewhere", revision=1, reward_spec_version=0, reward=1.0, flags=[], trainable=True)


def test_a_broken_call_scores_below_an_honest_failure(world: Rewarded, tmp_path: Path) -> None:
    for name, arguments in (("honest", '{"input": "a"}'), ("broken", '{"input": ')):
        for step in make_steps(name, 1, environment="shop-2"):
            step["response"]["tool_calls"][0]["arguments"] = arguments
            world.send("steps", step)
        # The environment is fooled: it takes the error for a success.
        fooled = float(name == "broken")
        world.put(
            "feedback", make_ending(name, 1, fooled), make_feedback(name, 0.0, name="units", source="test", number=1)
        )
    world.becomes("honest", reward=0.0, success=False)
    world.becomes("broken", reward=-1.0, success=True)
    told = [("cap:malformed", "guard"), ("outcome", "term"), ("tests", "term")]
    world.has_components("broken", "name, kind", told)

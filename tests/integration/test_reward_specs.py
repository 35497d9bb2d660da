"""Test a reward specification from its file to the tables: put, late and retracted feedback, a new version."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from click.testing import CliRunner
from stack_fixtures import with_settings
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
    """A stack whose reward specifications are published while it runs."""

    def has_components(self, name: str, columns: str, expected: list[tuple[Any, ...]]) -> None:
        """Wait until the newest label of a trajectory has these components."""
        of = f"current_reward_components WHERE trajectory_id = '{name}'"
        self.wait_for_rows(f"SELECT {columns} FROM {of} ORDER BY name", expected)

    def rewards(self, *words: str, fails: bool = False) -> str:
        """Run `stepstream rewards WORDS`; return its output."""
        done = CliRunner().invoke(cli, ["rewards", *words], env=environment_of(self.settings))
        assert (done.exit_code != 0) == fails, done.output
        return done.output


@pytest.fixture(scope="module")
def world(
    base_settings: Settings,
    with_topics_and_tables: Callable[[Settings], Settings],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Rewarded]:
    settings = with_settings(with_topics_and_tables(isolated(base_settings, tmp_path_factory.mktemp("rewards"))))
    with Stack(settings, PROCESSES) as running, Rewarded(running.settings) as opened:
        yield opened


def test_late_feedback_and_new_specifications_revise_the_label(world: Rewarded, tmp_path: Path) -> None:
    file = tmp_path / "shop.toml"
    file.write_text(SPEC)
    put = orjson.loads(world.rewards("put", str(file), "--json"))
    assert (put["name"], put["version"], put["changed"], put["environments"]) == ("shop", 1, True, ["shop-*"])
    assert orjson.loads(world.rewards("put", str(file), "--json"))["changed"] is False
    spec = f"shop@{put['digest']}"

    # The specification and the steps arrive on different topics: until it arrives, the built-in one applies.
    world.send("steps", *make_steps("t", 2, environment="shop-1"))
    world.send_and_flush("feedback", make_ending("t", 2))
    # `label` waits one second for `tests`; labels before that are partial.
    timed_out = {
        "reward_spec": spec,
        "reward_spec_version": 1,
        "reward": 1.0,
        "pending": [],
        "flags": ["missing:tests"],
    }
    world.wait_for_trajectory("t", **timed_out, trainable=True)
    world.wait_for_rows("SELECT reason, components FROM closures FINAL", [("waited", ["tests"])])
    [(first,)] = world.rows("SELECT revision FROM trajectories FINAL WHERE trajectory_id = 't'")

    world.send_and_flush("feedback", make_feedback("t", 1.0, name="tests", source="test", number=1))
    world.wait_for_trajectory("t", revision=first + 1, reward=2.0, flags=[], trainable=True)
    world.send_and_flush("feedback", make_feedback("t", 0.0, source="user", number=2))  # from the wrong source
    world.wait_for_trajectory("t", revision=first + 2, reward=2.0, success=True, flags=["wrong_source:outcome"])
    world.send_and_flush("feedback", make_feedback("t", -3.0, name="thumbs", source="user", number=3))
    world.wait_for_trajectory("t", revision=first + 3, reward=1.5)
    components = [
        ("outcome", "term", "environment", 1.0, 1.0),
        ("tests", "term", "test", 1.0, 1.0),
        ("thumbs", "term", "user", -1.0, 0.5),
    ]
    world.has_components("t", "name, kind, source, value, weight", components)
    thumbs = make_feedback("t", number=3)["event_id"]
    world.send_and_flush("feedback", make_feedback("t", None, name="thumbs", number=4, retracts=thumbs))
    world.wait_for_trajectory("t", revision=first + 4, reward=2.0)
    world.has_components("t", "name", [("outcome",), ("tests",)])
    stored_components = (
        "SELECT countIf(name = 'thumbs'), max(revision) FROM current_reward_components WHERE trajectory_id = 't'"
    )
    world.wait_for_rows(stored_components, [(0, first + 4)])

    file.write_text(SPEC.replace("weight = 0.5", "weight = 0.25").replace('feedback = "tests"', 'feedback = "units"'))
    assert "version 2 of shop applies to all agents in shop-* now" in world.rewards("put", str(file))
    # No feedback `units` exists; its wait has passed too.
    world.wait_for_trajectory("t", reward_spec_version=2, reward=1.0, pending=[], trainable=True)
    listed = orjson.loads(world.rewards("list", "--json"))
    assert [(row["name"], row["version"]) for row in listed] == [("shop", 2)]
    assert 'feedback = "units"' in world.rewards("show", "shop")
    assert "published: shop" in world.rewards("show", "nothing", fails=True)
    stored = [(1, ["shop-*"]), (2, ["shop-*"])]
    world.wait_for_rows("SELECT version, environments FROM reward_specs FINAL ORDER BY version", stored)
    rates = "SELECT component, sum(n) FROM component_rates WHERE environment = 'shop-1' GROUP BY component"
    world.wait_for_rows(rates, [("outcome", 1)])


def test_an_invalid_version_becomes_a_dead_letter_and_the_last_valid_one_applies(world: Rewarded) -> None:
    document = "name = 'shop'\n[[component]]\nname = 'hints'\nfeedback = 'shadow.hints'\n"  # it would count
    invalid = new_reward_specification(
        event_id=new_event_id(), occurred_at_us=now_us(), name="shop", version=3, digest="", document=document
    )
    world.send_and_flush("reward-specs", invalid, key="shop")
    world.wait_for_rows("SELECT topic, error FROM dead_letters FINAL", [("reward-specs", "invalid")])
    [(reason,)] = world.rows("SELECT reason FROM dead_letters FINAL")
    assert "feedback named `shadow.…` must not count" in reason
    world.send("steps", *make_steps("after", 1, environment="shop-3"))
    world.send_and_flush("feedback", make_ending("after", 1))
    world.wait_for_trajectory("after", reward_spec_version=2, reward=1.0)
    assert [row["version"] for row in orjson.loads(world.rewards("list", "--json"))] == [2]


def test_other_environments_get_the_specification_of_the_settings(world: Rewarded) -> None:
    world.send("steps", *make_steps("elsewhere", 1, environment="bank"))
    world.send_and_flush("feedback", make_ending("elsewhere", 1))
    world.wait_for_trajectory("elsewhere", revision=1, reward_spec_version=0, reward=1.0, flags=[], trainable=True)


def test_a_malformed_call_scores_below_an_honest_failure(world: Rewarded, tmp_path: Path) -> None:
    for name, arguments in (("honest", '{"input": "a"}'), ("broken", '{"input": ')):
        for step in make_steps(name, 1, environment="shop-2"):
            step["response"]["tool_calls"][0]["arguments"] = arguments
            world.send("steps", step)
        # The environment takes the error for a success.
        outcome = float(name == "broken")
        world.send_and_flush(
            "feedback", make_ending(name, 1, outcome), make_feedback(name, 0.0, name="units", source="test", number=1)
        )
    world.wait_for_trajectory("honest", reward=0.0, success=False)
    world.wait_for_trajectory("broken", reward=-1.0, success=True)
    components = [("cap:malformed", "guard"), ("outcome", "term"), ("tests", "term")]
    world.has_components("broken", "name, kind", components)

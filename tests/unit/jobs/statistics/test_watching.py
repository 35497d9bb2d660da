"""Decisions of `watch`: each alarm is raised once and cleared once, for any order and repetition of records."""

import itertools
import random
from dataclasses import replace
from operator import itemgetter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from measure_runs import measure_run
from sample_records import T0_US, trajectory

from stepstream.config import AlarmsSettings
from stepstream.jobs.statistics.watching import Watcher
from stepstream.topics.catalogue import COMPONENT_STATS
from stepstream.topics.events import Alarm, new_labeled_step, new_reward_component

RULE = AlarmsSettings(window=8)
JOB = "watch@1"


def attempt(name: str, version: int, *, broken: bool, success: bool, spec: str = "bad", **fields: Any) -> Any:
    """A trajectory under a specification that pays for broken calls; half of them are made in each of two steps."""
    outcome = new_reward_component(name="outcome", value=float(success), weight=1.0, source="environment")
    excused = new_reward_component(name="excused", value=0.5 * broken, weight=0.8, source="builtin:errors")
    steps = [
        new_labeled_step(step_index=0, event_id="s", reward=0.0, return_to_go=0.0, components=[excused]),
        new_labeled_step(step_index=1, event_id="s", reward=0.0, return_to_go=0.0, components=[excused, outcome]),
    ]
    reward = 0.8 * broken + success
    return trajectory(
        name, version=version, success=success, reward=reward, steps=steps, reward_spec=spec, tools=[], **fields
    )


def version_of(version: int, broken: int, successes: int, spec: str = "bad", groups: int = 9) -> list[Any]:
    """Groups of four; of 36 attempts, so many are broken and so many others succeed, spread over the groups."""
    places = list(range(4 * groups))
    random.Random(version).shuffle(places)
    return [
        attempt(
            f"{spec}/{version}/{n}",
            version,
            broken=place < broken,
            success=broken <= place < broken + successes,
            spec=spec,
            group_id=f"{spec}/{version}/{n // 4}",
        )
        for n, place in enumerate(places)
    ]


class Measured:
    """`measure` over two partitions; each record is a batch."""

    def __init__(self) -> None:
        self._runs = [measure_run() for _ in range(2)]

    def feed(self, labels: list[Any]) -> list[Any]:
        """The snapshots that labels give."""
        snapshots = []
        for label in labels:
            partition = sum(label["group_id"].encode()) % len(self._runs)
            run = self._runs[partition]
            record = replace(run.record("labeled-trajectories", label), partition=partition)
            snapshots += [event for topic, _, event in run.feed([record]) if topic == COMPONENT_STATS]
        return snapshots


def measured(labels: list[Any]) -> list[Any]:
    """The snapshots of a log of these labels alone."""
    return Measured().feed(labels)


HONEST, GAMED, CURED = (2, 20), (32, 2), (1, 33)
STORY = [HONEST, HONEST, GAMED, GAMED]


def story(*shares: tuple[int, int], spec: str = "bad", first: int = 0) -> list[Any]:
    versions = enumerate([*shares, shares[-1]], first)
    return list(itertools.chain.from_iterable(version_of(v, *share, spec=spec) for v, share in versions))


def raised(watcher: Watcher, snapshots: list[Any], now_us: int = T0_US) -> list[Alarm]:
    for snapshot in snapshots:
        watcher.add_stats(snapshot)
    return list(watcher.decide(now_us))


def test_an_alarm_is_raised_once_and_cleared_once() -> None:
    watcher, measure = Watcher(RULE, JOB), Measured()
    snapshots = measure.feed(story(*STORY))
    [alarm] = raised(watcher, snapshots)
    assert (alarm["state"], alarm["kind"], alarm["rising"], alarm["falling"]) == (
        "raised",
        "success",
        "excused",
        "success",
    )
    assert (alarm["rising_before"], alarm["rising_after"]) == (2 / 36, 32 / 36)
    assert (alarm["falling_before"], alarm["falling_after"]) == (20 / 36, 2 / 36)
    assert (alarm["trajectories_before"], alarm["trajectories_after"]) == (36, 36)
    assert (alarm["baseline_version"], alarm["since_version"], alarm["until_version"]) in {(0, 2, 2), (1, 2, 2)}
    assert alarm["message"].startswith("a, demo: term 'excused' went from 0.0556 to 0.889 while success went from")
    assert alarm["p_value"] < alarm["threshold"]
    assert raised(watcher, snapshots) == []
    [cleared] = raised(watcher, measure.feed(story(CURED, first=len(STORY) + 1)), T0_US + 5)
    assert cleared == alarm | {"state": "cleared", "event_id": cleared["event_id"], "occurred_at_us": T0_US + 5}
    assert cleared["event_id"] != alarm["event_id"]
    assert watcher.active == []


def test_a_restart_repeats_and_misses_no_decision() -> None:
    first = Watcher(RULE, JOB)
    snapshots = measured(story(*STORY))
    [alarm] = raised(first, snapshots)
    again = Watcher(RULE, JOB)
    again.add_decision(alarm)
    assert raised(again, snapshots) == []
    assert again.active == [alarm]
    # Killed before Kafka had it: decided again, as the same event.
    assert raised(Watcher(RULE, JOB), snapshots) == [alarm]
    # Cured while it was away.
    away = Watcher(RULE, JOB)
    away.add_decision(alarm)
    assert [each["state"] for each in raised(away, measured(story(*STORY, CURED)))] == ["cleared"]


def test_old_periods_are_forgotten_and_the_decisions_stay() -> None:
    rule = AlarmsSettings(window=8, history=2)
    snapshots = measured(story(HONEST, HONEST, HONEST, HONEST, HONEST, HONEST, GAMED, CURED))
    once, steadily = Watcher(rule, JOB), Watcher(rule, JOB)
    decisions = []
    for snapshot in snapshots:
        decisions += raised(steadily, [snapshot])
    assert steadily.periods == 5, "four windows and the newest period"
    raised(once, snapshots)
    assert once.active == steadily.active
    assert [alarm["state"] for alarm in decisions] == ["raised", "cleared"]
    raised(steadily, snapshots[:1])
    assert steadily.periods == 5, "a late record of a forgotten period"


def test_another_specification_starts_a_new_comparison() -> None:
    watcher = Watcher(RULE, JOB)
    [alarm] = raised(watcher, measured(story(*STORY)))
    labels = story(GAMED, CURED, spec="good", first=len(STORY))
    beyond = measured([{**label, "occurred_at_us": T0_US + 1} for label in labels])
    [cleared] = raised(watcher, beyond)
    assert (cleared["alarm_id"], cleared["state"]) == (alarm["alarm_id"], "cleared")


def test_a_healthy_run_raises_no_alarm() -> None:
    assert raised(Watcher(RULE, JOB), measured(story(HONEST, HONEST, CURED, CURED))) == []


def test_agents_and_splits_are_not_mixed() -> None:
    labels = story(*STORY)
    for n, label in enumerate(labels):
        label["agent"], label["split"] = f"a{n % 2}", "eval" if n % 3 else "train"
    alarms = raised(Watcher(RULE.model_copy(update={"window": 100}), JOB), measured(labels))
    assert alarms == []


@pytest.mark.parametrize("gamer", ["acme", "default"])
def test_an_alarm_names_the_tenant_that_games_its_reward_only(gamer: str) -> None:
    """Agent, model, specification, trajectories and groups of both have the same names."""
    honest = "default" if gamer == "acme" else "acme"
    own = [label | {"tenant": gamer} for label in story(*STORY)]
    others = [label | {"tenant": honest} for label in story(*[HONEST] * len(STORY))]
    snapshots = measured(list(itertools.chain.from_iterable(zip(own, others, strict=True))))
    keys = {tenant: {one["key"] for one in snapshots if one["tenant"] == tenant} for tenant in (gamer, honest)}
    assert len(keys[gamer]) == len(keys[honest]) > 0
    assert not keys[gamer] & keys[honest]
    watcher = Watcher(RULE, JOB)
    [alarm] = raised(watcher, snapshots)
    assert (alarm["tenant"], alarm["state"], alarm["falling"]) == (gamer, "raised", "success")
    [alone] = raised(Watcher(RULE, JOB), measured(own))
    assert alarm == alone, "the other tenant changes nothing"
    restarted = Watcher(RULE, JOB)
    restarted.add_decision(alarm)
    assert raised(restarted, snapshots) == []
    assert ("of tenant acme" in alarm["message"]) == (gamer == "acme")


def test_alarms_of_two_tenants_are_two_alarms() -> None:
    labels = [label | {"tenant": tenant} for tenant in ("default", "acme") for label in story(*STORY)]
    alarms = raised(Watcher(RULE, JOB), measured(labels))
    assert [alarm["tenant"] for alarm in alarms] == ["acme", "default"]
    assert len({alarm["alarm_id"] for alarm in alarms}) == len({alarm["event_id"] for alarm in alarms}) == 2
    of_default = raised(Watcher(RULE, JOB), measured(story(*STORY)))
    assert alarms[1:] == of_default


@settings(max_examples=6)
@given(st.data())
def test_order_and_revisions_do_not_matter(data: st.DataObject) -> None:
    """The active alarms follow from the newest revisions, for any order and repetition."""
    newest = story(*STORY)
    wrong = data.draw(st.lists(st.sampled_from(newest), max_size=30, unique_by=lambda label: label["trajectory_id"]))
    older = [
        attempt(each["trajectory_id"], 1, broken=not each["success"], success=True, group_id=each["group_id"])
        for each in wrong
    ]
    final = {label["trajectory_id"]: label | {"revision": 2, "event_id": "2" + label["event_id"]} for label in newest}
    labels = data.draw(st.permutations([*older, *final.values()]))
    snapshots = measured(labels)
    expected = raised(Watcher(RULE, JOB), measured(list(final.values())))
    watcher = Watcher(RULE, JOB)
    shuffled = data.draw(st.permutations(snapshots))
    assert raised(watcher, shuffled + snapshots[:20]) == expected
    again = Watcher(RULE, JOB)
    for start in range(0, len(snapshots), 25):  # also after alarms in between
        raised(again, snapshots[start : start + 25])
    assert sorted(map(itemgetter("kind", "falling"), again.active)) == sorted(
        map(itemgetter("kind", "falling"), expected)
    )


def test_a_canary_that_was_taken_back_raises_an_alarm_though_nothing_newer_is_served() -> None:
    """Its rollback must not hide that the learner's reward is gamed: the next version would harm as well."""
    watcher = Watcher(RULE, JOB)
    served = [*version_of(0, *HONEST), *version_of(1, *GAMED)]
    assert raised(watcher, measured(served)) == [], "the newest period is not complete"
    watcher.set_taken_back("another", [1])
    assert raised(watcher, []) == []
    watcher.set_taken_back("demo", [1])
    [alarm] = raised(watcher, [])
    assert (alarm["state"], alarm["rising"], alarm["falling"]) == ("raised", "excused", "success")
    assert (alarm["baseline_version"], alarm["since_version"], alarm["until_version"]) == (0, 1, 1)


def test_an_alarm_stays_after_a_rollback_until_a_newer_version_or_specification() -> None:
    watcher, measure = Watcher(RULE, JOB), Measured()
    labels = story(*STORY)
    [alarm] = raised(watcher, measure.feed(labels))
    bad = range(STORY.index(GAMED), len(STORY) + 1)
    watcher.set_taken_back("demo", bad)
    assert raised(watcher, []) == [], "the reward is as gameable as before"
    again = Watcher(RULE, JOB)
    again.add_decision(alarm)
    again.set_taken_back("demo", bad)
    assert raised(again, measured(labels)) == []
    [cleared] = raised(again, measured([*labels, *story(CURED, first=9)]))
    assert (cleared["alarm_id"], cleared["state"]) == (alarm["alarm_id"], "cleared")
    judged_anew = [{**label, "occurred_at_us": T0_US + 1} for label in version_of(0, *HONEST, spec="good")]
    few, others = judged_anew[:8], judged_anew[8:]
    assert raised(watcher, measure.feed(few)) == [], "two groups"
    [cleared] = raised(watcher, measure.feed(others))
    assert (cleared["alarm_id"], cleared["state"]) == (alarm["alarm_id"], "cleared")


def test_a_version_that_was_taken_back_is_no_base_and_clears_nothing() -> None:
    """A poisoned version succeeds in nothing and breaks nothing, so any other looks as if it had risen or fallen."""
    watcher = Watcher(RULE, JOB)
    watcher.set_taken_back("demo", [1, 4])
    poison, idle = (0, 0), (0, 36)
    assert raised(watcher, measured(story(HONEST, idle, HONEST))) == []
    gamed = measured([*story(HONEST, idle, HONEST, GAMED), *version_of(4, *poison)])
    [alarm] = raised(watcher, gamed)
    assert alarm["state"] == "raised"


def test_a_restart_takes_the_same_versions_back() -> None:
    snapshots = measured(story(*STORY))
    expected, watcher = Watcher(RULE, JOB), Watcher(RULE, JOB)
    assert len(raised(expected, snapshots)) == 1
    watcher.set_taken_back("demo", range(STORY.index(GAMED), len(STORY) + 1))
    assert raised(watcher, snapshots) == expected.active

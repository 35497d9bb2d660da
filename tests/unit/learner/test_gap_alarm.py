"""Check that the gap between engine and learner is raised once and cleared once, across restarts."""

from typing import Any

from sample_records import alarm as reward_alarm

from stepstream.config import AlarmsSettings
from stepstream.jobs.statistics.watching import Watcher
from stepstream.learner.gap_alarm import GapAlarm
from stepstream.topics.events import Alarm

FAR = {"mu_gap_max": 2.5, "mu_gap_mean": 0.5, "mu_gap_tokens": 40.0}
NEAR = FAR | {"mu_gap_max": 1.0}


def decisions(gap: GapAlarm, *figures: dict[str, float]) -> list[Alarm | None]:
    return [gap.decide(each, version, 6, version) for version, each in enumerate(figures, start=5)]


def test_an_alarm_is_raised_once_and_cleared_once() -> None:
    gap = GapAlarm("demo", 1.0)
    found = decisions(gap, NEAR, {}, FAR, FAR, {}, NEAR, NEAR, FAR)
    assert [each["state"] if each else None for each in found] == [
        None, None, "raised", None, None, "cleared", None, "raised",
    ]  # fmt: skip
    raised, cleared, again = (found[index] for index in (2, 5, 7))
    assert raised
    assert cleared
    assert again
    assert (raised["model"], raised["since_version"], raised["rising"]) == ("demo", 7, "mu_gap_max")
    assert (raised["rising_after"], raised["threshold"], raised["trajectories_after"]) == (2.5, 1.0, 6)
    assert raised["message"].startswith("demo@7: log-probabilities of the workers differ by up to 2.5 nats")
    assert cleared | {"state": "raised", "event_id": raised["event_id"], "occurred_at_us": 7} == raised
    assert again["alarm_id"] != raised["alarm_id"] == cleared["alarm_id"]
    assert len({each["event_id"] for each in (raised, cleared, again)}) == 3


def test_a_restarted_learner_continues_from_the_log() -> None:
    raised = GapAlarm("demo", 1.0).decide(FAR, 5, 6, 0)
    assert raised
    others: list[Any] = [raised | {"model": "other"}, reward_alarm(model="demo")]
    assert not GapAlarm("demo", 1.0, others).active
    restarted = GapAlarm("demo", 1.0, [raised, *others])
    assert restarted.decide(FAR, 6, 6, 0) is None
    cleared = restarted.decide(NEAR, 7, 6, 0)
    assert cleared
    assert not GapAlarm("demo", 1.0, [raised, cleared]).active


def test_a_repeated_update_gives_the_same_event() -> None:
    first, second = (GapAlarm("demo", 1.0).decide(FAR, 5, 6, 0) for _ in range(2))
    assert first
    assert first == second


def test_the_watch_job_leaves_it_alone() -> None:
    raised = GapAlarm("demo", 1.0).decide(FAR, 5, 6, 0)
    assert raised
    watcher = Watcher(AlarmsSettings(), "watch@1")
    watcher.add_decision(raised)
    assert watcher.active == []

"""Test that the learner process follows what the control plane decides: pauses, rollbacks, excluded labels."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from learner_lab import GROUPS, PER_VERSION, SIZE, LearnerLab
from waiting import wait_until

from stepstream.cli.models import rebuild
from stepstream.config import Settings
from stepstream.learner.publish import publish_root
from stepstream.topics.catalogue import ROLLOUTS, TRAINING_CONTROL
from stepstream.topics.events import new_training_control
from stepstream.topics.ids import new_event_id, now_us
from stepstream.versions import rollout_actions
from stepstream.versions.rollouts import ModelVersions


@pytest.fixture
def lab(registry_settings: Settings, tmp_path: Path) -> Iterator[LearnerLab]:
    made = LearnerLab(registry_settings, tmp_path)
    yield made
    made.close()


def test_a_learner_pauses_in_place_and_goes_on_from_the_stable_version_after_a_rollback(lab: LearnerLab) -> None:
    def pause(paused: bool) -> None:
        identity: dict[str, Any] = {"event_id": new_event_id(), "occurred_at_us": now_us()}
        lab.send(TRAINING_CONTROL, lab.model, new_training_control(**identity, model=lab.model, paused=paused))

    versions = ModelVersions()

    def roll_out(decision: rollout_actions.Decision) -> None:
        event = decision.event(lab.model, event_id=new_event_id(), occurred_at_us=now_us(), reason="", author="")
        versions.apply_rollout(event)
        lab.send(ROLLOUTS, lab.model, event)

    publish_root(lab.settings, lab.base, lab.model)
    lab.learner.start()
    pause(True)
    wait_until(lambda: lab.series()["stepstream_learner_paused"] == 1)
    lab.produce(*(f"g{n}" for n in range(PER_VERSION)))
    lab.produce(*(f"h{n}" for n in range(PER_VERSION)))
    assert lab.newest() == 0
    pause(False)
    lab.wait_for(2)
    assert len(set(lab.trained(2))) == 2 * PER_VERSION * SIZE, "nothing was lost"
    lab.produce(*(f"k{n}" for n in range(PER_VERSION)), versions=(1, 1))
    lab.wait_for(3)

    for version, one in lab.versions().by_model[lab.model].items():
        versions.apply_checkpoint(version, one)
    roll_out(rollout_actions.promote(lab.model, versions, 1))
    roll_out(rollout_actions.start_canary(lab.model, versions, 3, 0.1))
    roll_out(rollout_actions.rollback(lab.model, versions))
    wait_until(lambda: f"training {lab.model}@1" in lab.learner.log_text)
    lab.produce(*(f"bad{n}" for n in range(PER_VERSION)), versions=(3, 3))
    lab.produce(*(f"i{n}" for n in range(PER_VERSION)), versions=(1, 1))
    lab.wait_for(4)
    newest = lab.versions().get(lab.model, 4)
    assert newest["parent_version"] == 1
    decisions = [one for one in lab.own_records("training-decisions") if one["trajectory_id"].startswith("bad")]
    assert {(one["outcome"], one["reason"]) for one in decisions} == {("dropped", "other_lineage")}
    assert newest["metrics"]["staleness_max"] <= 1, "versions that were taken back do not count"
    harmful = set(lab.trained(3)) - set(lab.trained(2))
    assert harmful.isdisjoint(lab.trained(4)), "the version that was taken back would be trained again"
    assert lab.cli(rebuild, f"{lab.model}@4").exit_code == 0


def test_a_learner_trains_on_no_label_of_an_excluded_reward_specification(lab: LearnerLab) -> None:
    def control(paused: bool) -> None:
        identity: dict[str, Any] = {"event_id": new_event_id(), "occurred_at_us": now_us(), "model": lab.model}
        excluded = {"gamed": "d1"}
        lab.send(
            TRAINING_CONTROL,
            lab.model,
            new_training_control(**identity, paused=paused, excluded_reward_specs=excluded),
        )

    publish_root(lab.settings, lab.base, lab.model)
    lab.learner.start()
    # One update that is not published yet, and a group that waits for the next one.
    lab.produce(*(f"gamed-{n}" for n in range(GROUPS + 1)), reward_spec="gamed")
    wait_until(lambda: lab.series().get("stepstream_learner_updates_total") == 1)
    control(paused=True)
    wait_until(lambda: "the updates since the last version are discarded" in lab.learner.log_text)
    wait_until(lambda: lab.series()["stepstream_learner_paused"] == 1)
    lab.produce("gamed-paused", reward_spec="gamed")
    lab.learner.kill()
    lab.learner.start()
    control(paused=False)
    lab.produce("gamed-late", reward_spec="gamed")
    lab.produce(*(f"sound-{n}" for n in range(PER_VERSION)))
    lab.wait_for(1)
    lab.produce("gamed-last", reward_spec="gamed")

    def dropped() -> set[tuple[str, str]]:
        decisions = lab.own_records("training-decisions")
        return {(one["trajectory_id"], one["reason"]) for one in decisions if one["outcome"] == "dropped"}

    gamed = [*(f"gamed-{n}" for n in range(GROUPS + 1)), "gamed-paused", "gamed-late", "gamed-last"]
    expected = {(f"{name}/{n}", "excluded_reward_spec") for name in gamed for n in range(SIZE)}
    wait_until(lambda: dropped() == expected)
    records = lab.records("labeled-trajectories")
    trained = {records[position]["trajectory_id"] for position in lab.trained(1)}
    assert trained == {f"sound-{number}/{n}" for number in range(PER_VERSION) for n in range(SIZE)}
    assert lab.cli(rebuild, f"{lab.model}@1").exit_code == 0

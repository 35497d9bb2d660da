"""The learner as a process on a real broker: killed in mid-run, resumed, rebuilt, moved to a new lineage."""

import hashlib
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from learner_lab import GROUPS, PER_VERSION, SIZE, UPDATES, LearnerLab
from stack_fixtures import with_settings
from waiting import wait_until

from stepstream.cli.models import models, rebuild
from stepstream.config import Settings
from stepstream.jobs.clickhouse.rows import TABLES, rows
from stepstream.learner.model.checkpoint import folder_of
from stepstream.learner.publish import publish_root
from stepstream.topics.events import new_update_input


@pytest.fixture
def lab(registry_settings: Settings, tmp_path: Path) -> Iterator[LearnerLab]:
    made = LearnerLab(registry_settings, tmp_path)
    yield made
    made.close()
    with suppress(AssertionError):  # never started
        if made.learner.status is None:
            made.learner.kill()


def test_killed_in_mid_run_it_trains_nothing_twice_and_every_version_rebuilds(lab: LearnerLab) -> None:
    publish_root(lab.settings, lab.base, lab.model)
    names = [f"g{number}" for number in range(8 * PER_VERSION)]
    lab.produce(*names[: 4 * PER_VERSION + 1])
    lab.learner.start()
    lab.wait_for(2)
    lab.learner.kill()
    killed_at = lab.newest()
    # The label job, killed as well, delivers again what it had not committed; then agents go on.
    lab.produce(*names[: 2 * PER_VERSION])
    lab.produce(*names[4 * PER_VERSION + 1 :])
    lab.produce_bytes(b"\x00not a record")
    lab.learner.start()
    lab.wait_for(8)
    assert killed_at < 8
    shown = lab.series()
    assert lab.learner.stop() == 0

    trained = lab.trained(8)
    records = lab.records("labeled-trajectories")
    identities = [records[place]["trajectory_id"] for place in trained]
    assert len(trained) == len(set(trained)) == len(identities) == len(set(identities))
    assert set(identities) == {f"{name}/{n}" for name in names for n in range(SIZE)}
    letters = [letter for letter in lab.records("dead-letters").values() if letter["key"] == lab.model.encode()]
    digest = hashlib.sha256(b"\x00not a record").hexdigest()
    assert [(letter["job"], letter["error"], letter["value"], letter["value_sha256"]) for letter in letters] == [
        ("learner@1", "unknown_schema", None, digest)
    ]

    decisions = lab.folded("training-decisions")
    told = {(one["trajectory_id"], one["outcome"]) for one in decisions}
    assert told == {(name, "trained") for name in identities}
    assert len(decisions) == len(identities)
    assert {(one["partition"], one["offset"]) for one in decisions} == set(trained)
    assert {one["checkpoint_version"] for one in decisions} == set(range(1, 9))
    updates = {update["update"]: update for update in lab.folded("learner-updates")}
    assert sorted(updates) == list(range(1, 8 * UPDATES + 1))
    for update in updates.values():
        assert update["trajectories"] == GROUPS * SIZE
        assert sum(lag["tokens"] for lag in update["lags"]) == update["figures"]["tokens"]
        assert update["seconds"]["train"] > 0
    check_what_was_shown(shown, updates)

    for version in range(1, 9):
        assert lab.cli(rebuild, f"{lab.model}@{version}").exit_code == 0
    shutil.rmtree(folder_of(lab.versions().get(lab.model, 7)["uri"]))
    answer = lab.cli(rebuild, f"{lab.model}@latest", "--json")
    assert answer.exit_code == 0, answer.output


def check_what_was_shown(shown: dict[str, float], updates: dict[int, Any]) -> None:
    """The series of a learner that stopped after the last update, and the rows that the updates become."""
    last = updates[max(updates)]
    for figure, value in last["figures"].items():
        assert shown[f'stepstream_learner_update{{figure="{figure}"}}'] == value, figure
    asked = "effective_share clip_share cap_share rejected_share kl staleness_mean staleness_max staleness_share_0"
    assert set(asked.split()) <= set(last["figures"])
    assert 0 < last["figures"]["effective_share"] <= 1
    assert last["figures"]["kl"] >= 0
    ends = ["more" if lag["most"] is None else str(lag["most"]) for lag in last["lags"]]
    for end, lag in zip(ends, last["lags"], strict=True):
        assert shown[f'stepstream_learner_effective_share_by_staleness{{most="{end}"}}'] == lag["effective_share"]
    done = shown["stepstream_learner_updates_total"]
    own = [update for number, update in updates.items() if number > max(updates) - done]
    assert shown["stepstream_learner_trained_tokens_total"] == sum(update["figures"]["tokens"] for update in own)
    by_staleness = [name for name in shown if name.startswith("stepstream_learner_tokens_by_staleness_total")]
    assert sum(shown[name] for name in by_staleness) == shown["stepstream_learner_trained_tokens_total"]
    assert shown["stepstream_learner_staleness_versions_count"] == done * GROUPS * SIZE
    assert {"train", "fold", "publish"} <= {name.split('"')[1] for name in shown if "learner_seconds_t" in name}

    made: list[Any] = [each for update in updates.values() for each in rows("learner-updates", update)]
    figures = TABLES["learner_updates"].columns.index("figures")
    of_updates = [row[figures] for table, row in made if table == "learner_updates"]
    assert of_updates == [update["figures"] for update in updates.values()]
    tokens = TABLES["learner_update_lags"].columns.index("tokens")
    of_lags = [row[tokens] for table, row in made if table == "learner_update_lags"]
    assert sum(of_lags) == sum(update["figures"]["tokens"] for update in updates.values())


def test_a_group_that_was_given_up_is_not_waited_for_again(lab: LearnerLab) -> None:
    lab.settings = with_settings(lab.settings, learner={"group_wait_s": 0.5})
    lab.learner.settings = lab.settings
    publish_root(lab.settings, lab.base, lab.model)
    lab.produce("half", size=1)
    lab.learner.start()
    wait_until(lambda: len(lab.folded("training-decisions")) == 1)
    lab.learner.kill()
    # However slowly the others come: what was given up stays so by the log alone.
    lab.settings = lab.learner.settings = with_settings(lab.settings, learner={"group_wait_s": 600.0})
    lab.produce("half", "g0", "g1", "g2", "g3")
    lab.learner.start()
    lab.wait_for(1)
    wait_until(lambda: len(lab.folded("training-decisions")) == SIZE * (1 + PER_VERSION))
    decisions = {(one["trajectory_id"], one["reason"]) for one in lab.folded("training-decisions")}
    assert {one for one in decisions if one[1]} == {
        ("half/0", "group_incomplete"),
        ("half/1", "group_over"),
        ("half/2", "group_over"),
    }


def test_a_new_root_begins_a_new_lineage_while_it_runs(lab: LearnerLab) -> None:
    lab.learner.start()
    wait_until(lambda: "waiting for a first version" in lab.learner.log_text)
    publish_root(lab.settings, lab.base, lab.model)
    lab.produce(*(f"old{n}" for n in range(PER_VERSION + 1)))
    lab.wait_for(1)
    answer = lab.cli(models, "publish", str(lab.base), "--model", lab.model, "--json")
    assert answer.exit_code == 0, answer.output
    lab.produce(*(f"stale{n}" for n in range(PER_VERSION)), versions=(1, 1))
    lab.produce(*(f"new{n}" for n in range(PER_VERSION)), versions=(2, 2))
    lab.wait_for(3)
    versions = lab.versions()
    assert versions.get(lab.model, 2)["parent_version"] is None
    assert versions.get(lab.model, 3)["parent_version"] == 2
    records = lab.records("labeled-trajectories")
    assert {records[place]["group_id"] for place in lab.trained(3)} == {f"new{n}" for n in range(PER_VERSION)}
    assert lab.cli(rebuild, f"{lab.model}@2").output.startswith(f"{lab.model}@2 is the root of its lineage")
    assert f"{lab.model}@3" in lab.cli(models, "list").output
    assert "stepstream_learner_version 3.0" in lab.metrics()
    assert (
        f'stepstream_learner_trajectories_dropped_total{{reason="other_lineage"}} {PER_VERSION * SIZE}.0'
        in lab.metrics()
    )

    lab.publish(version=4, parent_version=3)
    wait_until(lambda: lab.learner.status is not None)
    assert lab.learner.status == 1
    assert f"another learner published {lab.model}@4" in lab.learner.log_text.splitlines()[-1]


def test_faults_are_told_by_name(lab: LearnerLab) -> None:
    publish_root(lab.settings, lab.base, lab.model)
    unknown = lab.cli(rebuild, f"{lab.model}@7")
    assert (unknown.exit_code, unknown.output) == (
        1,
        f"Error: version {lab.model}@7 does not exist; known versions: 0\n",
    )
    assert "model 'unheard' was never published" in lab.cli(rebuild, "unheard@latest").output
    assert lab.cli(rebuild, "demo").exit_code == 2
    folder = folder_of(lab.versions().get(lab.model, 0)["uri"])
    (folder / "config.json").write_text("{}")
    assert f"{folder}/config.json differs from the published file" in lab.cli(rebuild, f"{lab.model}@0").output


def test_a_log_that_lacks_what_the_model_was_trained_on_is_refused(lab: LearnerLab) -> None:
    root = publish_root(lab.settings, lab.base, lab.model)
    inputs = [new_update_input(update=1, partitions=[0], offsets=[10**9])]
    lab.publish(version=1, parent_version=0, uri=root["uri"], files=root["files"], inputs=inputs)
    lab.learner.launch()
    wait_until(lambda: lab.learner.status is not None)
    assert lab.learner.status == 1
    assert "partition 0 offset 1000000000, which this cluster does not have" in lab.learner.log_text.splitlines()[-1]

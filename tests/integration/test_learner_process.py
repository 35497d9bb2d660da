"""Test the learner process on a real broker: killed, resumed, rebuilt, moved to a new lineage."""

import hashlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from learner_lab import GROUPS, PER_VERSION, SIZE, UPDATES, LearnerLab
from stack_fixtures import with_settings
from waiting import wait_until

from stepstream.cli.alarms import alarms
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


def test_a_killed_learner_trains_on_nothing_twice_and_every_version_rebuilds(lab: LearnerLab) -> None:
    memory = lab.share_memory()
    publish_root(lab.settings, lab.base, lab.model)
    names = [f"g{number}" for number in range(8 * PER_VERSION)]
    lab.produce(*names[: 4 * PER_VERSION + 1])
    lab.learner.start()
    lab.wait_for(2)
    lab.learner.kill()
    [left_over] = memory.glob("stepstream-*/learner-*")
    killed_at = lab.newest()
    # A killed `label` job publishes uncommitted labels again; then new labels follow.
    lab.produce(*names[: 2 * PER_VERSION])
    lab.produce(*names[4 * PER_VERSION + 1 :])
    lab.produce_bytes(b"\x00not a record")
    lab.learner.start()
    lab.wait_for(8)
    assert killed_at < 8
    series = lab.series()
    [shared] = memory.glob("stepstream-*/learner-*")
    assert shared != left_over
    assert max(int(path.name.partition("-")[0]) for path in shared.glob("[0-9]*")) == 8
    assert series['stepstream_learner_shared_versions_total{outcome="shared"}'] == 8 - killed_at
    assert lab.learner.stop() == 0
    assert not shared.exists()

    trained = lab.trained(8)
    records = lab.records("labeled-trajectories")
    identities = [records[position]["trajectory_id"] for position in trained]
    assert len(trained) == len(set(trained)) == len(identities) == len(set(identities))
    assert set(identities) == {f"{name}/{n}" for name in names for n in range(SIZE)}
    letters = [letter for letter in lab.records("dead-letters").values() if letter["key"] == lab.model.encode()]
    digest = hashlib.sha256(b"\x00not a record").hexdigest()
    assert [(letter["job"], letter["error"], letter["value"], letter["value_sha256"]) for letter in letters] == [
        ("learner@1", "unknown_schema", None, digest)
    ]

    decisions = lab.own_records("training-decisions")
    outcomes = {(decision["trajectory_id"], decision["outcome"]) for decision in decisions}
    assert outcomes == {(name, "trained") for name in identities}
    assert len(decisions) == len(identities)
    assert {(decision["partition"], decision["offset"]) for decision in decisions} == set(trained)
    assert {decision["checkpoint_version"] for decision in decisions} == set(range(1, 9))
    updates = {update["update"]: update for update in lab.own_records("learner-updates")}
    assert sorted(updates) == list(range(1, 8 * UPDATES + 1))
    for update in updates.values():
        assert update["trajectories"] == GROUPS * SIZE
        assert sum(lag["tokens"] for lag in update["lags"]) == update["figures"]["tokens"]
        assert update["seconds"]["train"] > 0
    check_metrics(series, updates)

    for version in range(1, 9):
        assert lab.cli(rebuild, f"{lab.model}@{version}").exit_code == 0
    shutil.rmtree(folder_of(lab.versions().get(lab.model, 7)["uri"]))
    result = lab.cli(rebuild, f"{lab.model}@latest", "--json")
    assert result.exit_code == 0, result.output


def check_metrics(series: dict[str, float], updates: dict[int, Any]) -> None:
    """Check the metrics of a learner that stopped after its last update, and the rows of its updates."""
    last = updates[max(updates)]
    for figure, value in last["figures"].items():
        assert series[f'stepstream_learner_update{{figure="{figure}"}}'] == value, figure
    required = "effective_share clip_share cap_share rejected_share kl staleness_mean staleness_max staleness_share_0"
    assert set(required.split()) <= set(last["figures"])
    assert 0 < last["figures"]["effective_share"] <= 1
    assert last["figures"]["kl"] >= 0
    ends = ["more" if lag["most"] is None else str(lag["most"]) for lag in last["lags"]]
    for end, lag in zip(ends, last["lags"], strict=True):
        assert series[f'stepstream_learner_effective_share_by_staleness{{most="{end}"}}'] == lag["effective_share"]
    done = series["stepstream_learner_updates_total"]
    own = [update for number, update in updates.items() if number > max(updates) - done]
    assert series["stepstream_learner_trained_tokens_total"] == sum(update["figures"]["tokens"] for update in own)
    by_staleness = [name for name in series if name.startswith("stepstream_learner_tokens_by_staleness_total")]
    assert sum(series[name] for name in by_staleness) == series["stepstream_learner_trained_tokens_total"]
    assert series["stepstream_learner_staleness_versions_count"] == done * GROUPS * SIZE
    assert {"train", "fold", "publish"} <= {name.split('"')[1] for name in series if "learner_seconds_t" in name}

    inserted: list[Any] = [each for update in updates.values() for each in rows("learner-updates", update)]
    figures = TABLES["learner_updates"].columns.index("figures")
    of_updates = [row[figures] for table, row in inserted if table == "learner_updates"]
    assert of_updates == [update["figures"] for update in updates.values()]
    tokens = TABLES["learner_update_lags"].columns.index("tokens")
    of_lags = [row[tokens] for table, row in inserted if table == "learner_update_lags"]
    assert sum(of_lags) == sum(update["figures"]["tokens"] for update in updates.values())


def test_a_dropped_group_stays_dropped_after_a_restart(lab: LearnerLab) -> None:
    lab.settings = with_settings(lab.settings, learner={"group_wait_s": 0.5})
    lab.learner.settings = lab.settings
    publish_root(lab.settings, lab.base, lab.model)
    lab.produce("half", size=1)
    lab.learner.start()
    wait_until(lambda: len(lab.own_records("training-decisions")) == 1)
    lab.learner.kill()
    # With a longer wait configured, only the decision in the log keeps the group dropped.
    lab.settings = lab.learner.settings = with_settings(lab.settings, learner={"group_wait_s": 600.0})
    lab.produce("half", "g0", "g1", "g2", "g3")
    lab.learner.start()
    lab.wait_for(1)
    wait_until(lambda: len(lab.own_records("training-decisions")) == SIZE * (1 + PER_VERSION))
    decisions = {(decision["trajectory_id"], decision["reason"]) for decision in lab.own_records("training-decisions")}
    assert {decision for decision in decisions if decision[1]} == {
        ("half/0", "group_incomplete"),
        ("half/1", "group_over"),
        ("half/2", "group_over"),
    }


def test_a_killed_reader_process_stops_the_learner_and_a_killed_learner_its_reader(lab: LearnerLab) -> None:
    def reader() -> psutil.Process:
        (found,) = [each for each in lab.learner.children() if "reader_process" in " ".join(each.cmdline())]
        return found

    publish_root(lab.settings, lab.base, lab.model)
    names = [f"g{number}" for number in range(2 * PER_VERSION)]
    lab.produce(*names[:PER_VERSION])
    lab.learner.start()
    lab.wait_for(1)
    reader().terminate()  # a stop signal is for the learner alone
    lab.produce(*names[PER_VERSION:-1])
    wait_until(lambda: lab.series()["stepstream_learner_updates_total"] == 2 * UPDATES - 1)
    reader().kill()
    wait_until(lambda: lab.learner.status is not None)
    assert lab.learner.status == 1
    assert "the reader process ended with status -9: start the learner again" in lab.learner.log_text

    lab.produce(names[-1])
    lab.learner.start()
    lab.wait_for(2)
    records = lab.records("labeled-trajectories")
    trained = [records[position]["trajectory_id"] for position in lab.trained(2)]
    assert sorted(trained) == sorted(f"{name}/{n}" for name in names for n in range(SIZE))
    orphan = reader()
    lab.learner.kill()
    wait_until(lambda: not orphan.is_running())


def test_a_gap_between_engine_and_learner_is_an_alarm_until_it_closes(lab: LearnerLab) -> None:
    def set_limit(nats: float) -> None:
        lab.settings = lab.learner.settings = with_settings(lab.settings, learner={"max_mu_gap": nats})

    def states(*options: str) -> list[tuple[str, int, str]]:
        listed = json.loads(lab.cli(alarms, "--json", *options).stdout)
        own = [each for each in listed if each["model"] == lab.model]
        assert {each["rising"] for each in own} <= {"mu_gap_max"}
        return [(each["kind"], each["since_version"], each["state"]) for each in own]

    publish_root(lab.settings, lab.base, lab.model)
    set_limit(1e-3)  # the records' log-probabilities are random
    lab.produce(*(f"g{number}" for number in range(PER_VERSION)))
    lab.learner.start()
    lab.wait_for(1)
    assert lab.series()["stepstream_learner_gap_alarm"] == 1
    assert lab.learner.stop() == 0
    assert states() == [("engine_gap", 0, "raised")]
    set_limit(1e3)
    lab.produce(*(f"h{number}" for number in range(PER_VERSION)), versions=(1, 1))
    lab.learner.start()
    lab.wait_for(2)
    assert lab.series()["stepstream_learner_gap_alarm"] == 0
    assert states() == []
    assert states("--all") == [("engine_gap", 0, "cleared")]


def test_a_new_root_starts_a_lineage_in_a_running_learner(lab: LearnerLab) -> None:
    lab.learner.start()
    wait_until(lambda: "waiting for a first version" in lab.learner.log_text)
    publish_root(lab.settings, lab.base, lab.model)
    lab.produce(*(f"old{n}" for n in range(PER_VERSION + 1)))
    lab.wait_for(1)
    result = lab.cli(models, "publish", str(lab.base), "--model", lab.model, "--json")
    assert result.exit_code == 0, result.output
    lab.produce(*(f"stale{n}" for n in range(PER_VERSION)), versions=(1, 1))
    lab.produce(*(f"new{n}" for n in range(PER_VERSION)), versions=(2, 2))
    lab.wait_for(3)
    versions = lab.versions()
    assert versions.get(lab.model, 2)["parent_version"] is None
    assert versions.get(lab.model, 3)["parent_version"] == 2
    records = lab.records("labeled-trajectories")
    assert {records[position]["group_id"] for position in lab.trained(3)} == {f"new{n}" for n in range(PER_VERSION)}
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


def test_roots_that_are_published_while_the_learner_publishes_take_no_number_twice(lab: LearnerLab) -> None:
    root = publish_root(lab.settings, lab.base, lab.model)
    lab.learner.start()
    for number in range(3):
        at = root["version"]
        lab.produce(*(f"g{number}-{n}" for n in range(4 * PER_VERSION)), versions=(at, at))
        lab.wait_for(at + 1)
        root = publish_root(lab.settings, lab.base, lab.model)
    at = root["version"]
    lab.produce(*(f"last{n}" for n in range(2 * PER_VERSION)), versions=(at, at))
    lab.wait_for(at + 2)
    assert lab.learner.stop() == 0
    published = [record for record in lab.records("checkpoints").values() if record["model"] == lab.model]
    # Retention sends some events again.
    numbers = sorted(version for version, _ in {(record["version"], record["event_id"]) for record in published})
    assert numbers == list(range(len(numbers)))
    assert [record["version"] for record in published if record["parent_version"] is None][-1] == root["version"]
    versions = lab.versions()
    assert versions.lineage(versions.get(lab.model, root["version"] + 2))[-1] == root
    folders = {folder_of(record["uri"]).name for record in published}
    assert {path.name for path in folder_of(root["uri"]).parent.iterdir() if path.is_dir()} == folders


def test_rebuild_errors_name_the_version_or_file(lab: LearnerLab) -> None:
    publish_root(lab.settings, lab.base, lab.model)
    unknown = lab.cli(rebuild, f"{lab.model}@7")
    assert (unknown.exit_code, unknown.output) == (
        1,
        f"Error: version {lab.model}@7 does not exist; known versions: 0\n",
    )
    assert "model 'unheard' was never published" in lab.cli(rebuild, "unheard@latest").output
    assert lab.cli(rebuild, "demo").exit_code == 2
    folder = folder_of(lab.versions().get(lab.model, 0)["uri"])
    (folder / "weights/config.json").write_text("{}")
    assert "weights/config.json has sha256" in lab.cli(rebuild, f"{lab.model}@0").output


def test_a_log_without_the_trained_records_stops_the_learner(lab: LearnerLab) -> None:
    root = publish_root(lab.settings, lab.base, lab.model)
    inputs = [new_update_input(update=1, partitions=[0], offsets=[10**9])]
    lab.publish(version=1, parent_version=0, uri=root["uri"], files=root["files"], inputs=inputs)
    lab.learner.launch()
    wait_until(lambda: lab.learner.status is not None)
    assert lab.learner.status == 1
    assert "partition 0 offset 1000000000, which this cluster does not have" in lab.learner.log_text.splitlines()[-1]


def test_the_older_of_two_learners_is_fenced_and_publishes_nothing(lab: LearnerLab, tmp_path: Path) -> None:
    publish_root(lab.settings, lab.base, lab.model)
    lab.produce(*(f"g{n}" for n in range(PER_VERSION)))
    lab.learner.start()
    lab.wait_for(1)
    first = lab.versions().get(lab.model, 1)
    newer = lab.second_learner(tmp_path / "second.log")
    newer.start()
    wait_until(lambda: f"training {lab.model}@1" in newer.log_text)
    # Both read the same labels; only the newer one's version takes effect.
    lab.produce(*(f"h{n}" for n in range(PER_VERSION)), versions=(1, 1))
    wait_until(lambda: lab.learner.status is not None)
    assert lab.learner.status == 1
    assert f"another learner of '{lab.model}' started and took over" in lab.learner.log_text.splitlines()[-1]
    wait_until(lambda: lab.newest() == 2)
    assert newer.status is None
    lab.produce(*(f"i{n}" for n in range(PER_VERSION)), versions=(2, 2))
    wait_until(lambda: lab.newest() == 3)
    assert newer.stop() == 0
    versions = [record for record in lab.records("checkpoints").values() if record["model"] == lab.model]
    assert [(record["version"], record["parent_version"]) for record in versions] == [(0, None), (1, 0), (2, 1), (3, 2)]
    assert lab.versions().get(lab.model, 1) == first
    trained = lab.trained(3)
    assert len(trained) == len(set(trained)) == 3 * PER_VERSION * SIZE
    for version in range(1, 4):
        assert lab.cli(rebuild, f"{lab.model}@{version}").exit_code == 0


def test_a_learner_that_wakes_after_a_newer_one_took_over_ends_and_changes_no_file(
    lab: LearnerLab, tmp_path: Path
) -> None:
    publish_root(lab.settings, lab.base, lab.model)
    lab.learner.start()
    wait_until(lambda: f"training {lab.model}@0" in lab.learner.log_text)
    lab.learner.pause()
    newer = lab.second_learner(tmp_path / "second.log")
    newer.start()
    lab.produce(*(f"g{n}" for n in range(PER_VERSION)))
    wait_until(lambda: lab.newest() == 1)
    folders = [folder_of(lab.versions().get(lab.model, version)["uri"]) for version in (0, 1)]
    written = contents(*folders)
    # It wakes with the same labels to train on: it reads of the newer one's version 1, or its own is fenced.
    lab.learner.resume()
    wait_until(lambda: lab.learner.status is not None)
    assert lab.learner.status == 1
    assert "run only one learner per model" in lab.learner.log_text
    assert newer.status is None
    lab.produce(*(f"h{n}" for n in range(PER_VERSION)), versions=(1, 1))
    wait_until(lambda: lab.newest() == 2)
    assert newer.stop() == 0
    assert contents(*folders) == written
    versions = [record for record in lab.records("checkpoints").values() if record["model"] == lab.model]
    assert [(record["version"], record["parent_version"]) for record in versions] == [(0, None), (1, 0), (2, 1)]
    trained = lab.trained(2)
    assert len(trained) == len(set(trained)) == 2 * PER_VERSION * SIZE


def contents(*folders: Path) -> dict[Path, tuple[str, int]]:
    """Return digest and time of the last change of every file in some folders."""
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    return {path: (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns) for path in files}


def test_old_versions_are_removed_by_command_and_the_rest_rebuilds(lab: LearnerLab) -> None:
    publish_root(lab.settings, lab.base, lab.model)
    for number in range(1, 4):
        lab.produce(*(f"g{number}-{n}" for n in range(PER_VERSION)), versions=(number - 1, number - 1))
        if number == 1:
            lab.learner.start()
        lab.wait_for(number)
    assert lab.learner.stop() == 0
    keep = ("prune", lab.model, "--keep-versions", "1", "--keep-training", "1", "--json")
    folders = {number: folder_of(lab.versions().get(lab.model, number)["uri"]) for number in range(4)}
    planned = {"model": lab.model, "versions": [1], "training": [2]}
    for option in (["--dry-run"], []):
        result = lab.cli(models, *keep, *option)
        assert result.exit_code == 0, result.output
        assert json.loads(result.output) == planned | {"dry_run": bool(option)}
        assert folders[1].exists() == bool(option)
    gone = lab.versions().get(lab.model, 1)
    assert (gone["removal_reason"], gone["parent_version"]) == ("retention", 0)
    assert [path.name for path in folders[2].iterdir()] == ["weights"]
    rebuilt = lab.cli(rebuild, f"{lab.model}@3")  # from the root, since its parent cannot be trained on
    assert rebuilt.exit_code == 0, rebuilt.output
    # A learner goes on from the newest version, and removes old ones itself.
    lab.learner.settings = with_settings(lab.settings, learner={"keep_versions": 1, "keep_training": 1})
    lab.produce(*(f"g4-{n}" for n in range(PER_VERSION)), versions=(3, 3))
    lab.learner.start()
    lab.wait_for(4)
    wait_until(lambda: not folders[2].exists() and not (folders[3] / "training").exists())
    assert lab.versions().get(lab.model, 2)["removal_reason"] == "retention"
    assert lab.versions().get(lab.model, 3)["inputs"], "a rebuild needs them"
    wait_until(lambda: lab.series()['stepstream_learner_versions_removed_total{part="training"}'] == 1)
    assert lab.learner.stop() == 0
    assert lab.cli(rebuild, f"{lab.model}@4").exit_code == 0

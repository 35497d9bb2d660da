"""Check that versions are rebuilt bit for bit from the log."""

import shutil
from itertools import groupby
from pathlib import Path
from typing import Any, cast

import orjson
import pytest
from labelled_records import group_of, tiny_model, with_demonstration

from stepstream.config import LearnerSettings
from stepstream.learner.data.attempt import LogPosition, attempt_of
from stepstream.learner.data.groups import key_of
from stepstream.learner.lineage import Versions
from stepstream.learner.model.checkpoint import folder_of, write_root, write_version
from stepstream.learner.provenance import arithmetic, code_version, configuration_of, parse_configuration
from stepstream.learner.rebuild import CannotRebuild, _for_one_process, rebuild_from
from stepstream.learner.training.trainer import Trainer
from stepstream.topics import events
from stepstream.versions.layout import VersionRejected, weights_sha256

HOW = LearnerSettings(preset="tiny", warmup_updates=2, checkpoints="/somewhere/else")
PAID = {"kl_weight": 0.1, "kl_place": "reward", "advantage": "reinforce_pp"}


class World:
    """A log in memory and three versions that were trained from it: 0 (root), 1 and 2."""

    def __init__(self, data: Path, config: LearnerSettings = HOW, **fields: Any) -> None:
        self.config = config
        self.log: dict[LogPosition, Any] = {}
        for number in range(8):
            for record in group_of(f"g{number}", 3, **fields):
                if config.objective == "sft":
                    with_demonstration(record, number % 2, f"ans({number})")
                self.log[number % 2, len(self.log)] = record
        self.versions = Versions()
        root = tiny_model(data / "given")
        self._publish(data, 0, None, write_root(root, data / "0"), [])
        trainer = Trainer(data / "0", config, data / "0")
        for version in (1, 2):
            inputs = [self._train(trainer, 2 * version - 1), self._train(trainer, 2 * version)]
            files = write_version(trainer.snapshot(), data / str(version - 1), data / str(version))
            self._publish(data, version, version - 1, files, inputs)

    def _train(self, trainer: Trainer, number: int) -> events.UpdateInput:
        wanted = (f"g{2 * number - 2}/", f"g{2 * number - 1}/")
        read = [
            attempt_of(record, place, trainer.limits("demo"))
            for place, record in self.log.items()
            if record["trajectory_id"].startswith(wanted)
        ]
        taken = [list(group) for _, group in groupby(sorted(read, key=key_of), key=key_of)]
        trainer.update(number, taken, 0)
        places = [each.position for group in taken for each in group]
        return events.new_update_input(
            update=number, partitions=[place[0] for place in places], offsets=[place[1] for place in places]
        )

    def _publish(self, data: Path, version: int, parent: int | None, files: list[Any], inputs: list[Any]) -> None:
        self.versions.fold(
            events.new_checkpoint(
                event_id=f"c{version}",
                occurred_at_us=0,
                model="demo",
                version=version,
                parent_version=parent,
                uri=(data / str(version)).as_uri(),
                weights_sha256=weights_sha256(files),
                files=files,
                inputs=inputs,
                configuration=configuration_of(self.config),
                code_version=code_version(),
            )
        )

    def read(self, places: set[LogPosition]) -> dict[LogPosition, Any]:
        return {place: self.log[place] for place in places if place in self.log}

    def folder(self, version: int) -> Path:
        return folder_of(self.versions.get("demo", version)["uri"])

    def rebuild(self, version: int) -> Any:
        return rebuild_from(self.versions, self.versions.get("demo", version), self.read)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("world"))


@pytest.mark.parametrize("fields", [{"objective": "dpo"}, {"kl_weight": 0.1, "lora_rank": 2}, {"kl_weight": 0.1}, PAID])
def test_an_objective_with_a_reference_is_rebuilt(tmp_path: Path, fields: dict[str, Any]) -> None:
    world = World(tmp_path, HOW.model_copy(update=fields))
    assert world.rebuild(2).equal
    (world.folder(0) / "weights/model.safetensors").unlink()
    if fields.get("lora_rank"):
        assert world.rebuild(2).equal
    else:
        with pytest.raises(VersionRejected):
            world.rebuild(2)


@pytest.mark.parametrize("fields", [{"advantage": "step_ppo"}, {"advantage": "ppo_gae", "lora_rank": 2}])
def test_a_rule_with_a_critic_is_rebuilt_with_the_ancestors_critic(tmp_path: Path, fields: dict[str, Any]) -> None:
    world = World(tmp_path, HOW.model_copy(update=fields))
    assert world.rebuild(2).equal
    shutil.rmtree(world.folder(1))
    assert world.rebuild(2).equal
    published = {file["path"] for file in world.versions.get("demo", 2)["files"]}
    assert "training/critic.safetensors" in published


def test_imitation_is_rebuilt_bit_for_bit(tmp_path: Path) -> None:
    world = World(tmp_path, HOW.model_copy(update={"objective": "sft"}))
    assert world.rebuild(2).equal
    shutil.rmtree(world.folder(1))  # the ancestor that is rebuilt needs its tokenizer too
    assert world.rebuild(2).equal
    place = next(place for place, record in world.log.items() if record["group_id"] == "g7")
    world.log[place]["steps"][1]["demonstration"] = "ans(8)"
    assert not world.rebuild(2).equal


@pytest.fixture
def world(made: World, tmp_path: Path) -> World:
    """The world with folders and a log that a test may damage."""
    own = object.__new__(World)
    own.log, own.versions = dict(made.log), Versions()
    for version in range(3):
        checkpoint = made.versions.get("demo", version)
        shutil.copytree(made.folder(version), tmp_path / str(version))
        own.versions.fold({**checkpoint, "uri": (tmp_path / str(version)).as_uri()})
    return own


def test_weights_are_rebuilt_bit_for_bit(world: World) -> None:
    for version in (1, 2):
        result = world.rebuild(version)
        assert result.equal
        assert result.updates == 2
        assert result.trajectories == 12
        assert result.differences == ()
        assert result.apart == 0.0


def test_attempts_without_a_group_are_rebuilt_bit_for_bit(tmp_path: Path) -> None:
    alone = World(tmp_path, HOW.model_copy(update={"advantage": "reinforce_pp", "group_size": 1}), group_id=None)
    assert alone.rebuild(1).equal


def test_a_copied_version_is_not_rebuilt_from_the_copy(world: World) -> None:
    copied = {**world.versions.get("demo", 2), "input_topic": "labeled-trajectories"}
    with pytest.raises(CannotRebuild, match="demo@2 was trained on labeled-trajectories"):
        rebuild_from(world.versions, cast(Any, copied), world.read, "blue.")


def test_an_ancestor_that_is_gone_or_damaged_is_rebuilt_too(world: World) -> None:
    shutil.rmtree(world.folder(1))
    assert world.rebuild(2).equal
    (world.folder(1) / "weights").mkdir(parents=True)
    (world.folder(1) / "weights/model.safetensors").write_text("damaged")
    assert world.rebuild(2).equal


def test_a_root_is_verified(world: World) -> None:
    assert world.rebuild(0).equal
    (world.folder(0) / "weights/config.json").write_text("{}")
    with pytest.raises(VersionRejected, match=r"config\.json"):
        world.rebuild(0)
    with pytest.raises(VersionRejected, match=r"config\.json"):
        world.rebuild(1)


def test_a_changed_record_changes_the_weights(world: World) -> None:
    update = world.versions.get("demo", 2)["inputs"][0]
    place = update["partitions"][0], update["offsets"][0]
    world.log[place] = {**world.log[place], "reward": 0.5}
    result = world.rebuild(2)
    assert not result.equal
    assert 0.01 < result.apart < 2.0
    shutil.rmtree(world.folder(2))
    assert world.rebuild(2).apart is None


def test_a_missing_record_is_named(world: World) -> None:
    update = world.versions.get("demo", 2)["inputs"][1]
    place = update["partitions"][2], update["offsets"][2]
    del world.log[place]
    with pytest.raises(CannotRebuild, match=f"partition {place[0]} offset {place[1]}"):
        world.rebuild(2)


def test_a_version_of_a_gpu_is_compared_by_relative_difference(world: World) -> None:
    checkpoint = world.versions.get("demo", 1)
    then = orjson.loads(checkpoint["configuration"])
    then["learner"]["device"], then["arithmetic"]["device"] = "cuda", "NVIDIA H200"
    checkpoint["configuration"] = orjson.dumps(then).decode()
    result = world.rebuild(1)
    assert result.apart < 0.01
    assert [each for each in result.differences if each.startswith("device was NVIDIA H200, is ")]


def test_a_different_ancestor_stops_the_rebuild(world: World) -> None:
    parent = world.versions.get("demo", 1)
    shutil.rmtree(world.folder(1))
    parent["configuration"] = configuration_of(HOW.model_copy(update={"learning_rate": 0.5}))
    with pytest.raises(CannotRebuild, match="demo@1 came out as"):
        world.rebuild(2)


def test_the_recorded_configuration_is_used(world: World) -> None:
    config, then = parse_configuration(configuration_of(HOW))
    assert config == HOW.model_copy(update={"checkpoints": ""})
    assert then == arithmetic()
    older = orjson.loads(configuration_of(HOW))
    older["learner"]["no_longer_a_setting"] = 1
    older["arithmetic"]["torch"] = "1.0"
    assert parse_configuration(orjson.dumps(older).decode())[0] == config
    checkpoint = world.versions.get("demo", 1)
    checkpoint["configuration"] = orjson.dumps(older).decode()
    (difference,) = world.rebuild(1).differences
    assert difference.startswith("torch was 1.0, is ")


def test_what_several_ranks_trained_is_repeated_by_one_process() -> None:
    config = _for_one_process(HOW.model_copy(update={"reproducible": False, "shard_ranks": 2, "sequence_parallel": 4}))
    assert (config.shard_ranks, config.sequence_parallel) == (0, 1)

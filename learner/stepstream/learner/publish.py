"""Publishing versions: first the files, durable, then the event, acknowledged.

What a checkpoint event says about how it came to be: code, settings and the machine's arithmetic.
"""

import logging
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import orjson
import torch

from stepstream.config import LearnerSettings, Settings
from stepstream.core.process import Fatal, Stop
from stepstream.learner import SOURCE
from stepstream.learner.lineage import TOPIC, read_versions
from stepstream.learner.model.checkpoint import version_folder, weights_sha256, write_root, write_version
from stepstream.learner.model.distributed import current_ranks
from stepstream.learner.training.trainer import Trainer
from stepstream.topics.client import wait_for_kafka
from stepstream.topics.codec import Codec, RegistryUnavailable
from stepstream.topics.consumer import EventConsumer
from stepstream.topics.events import (
    Checkpoint,
    CheckpointFile,
    DeadLetter,
    PartitionOffset,
    UpdateInput,
    new_checkpoint,
    new_partition_offset,
)
from stepstream.topics.ids import new_event_id, now_us
from stepstream.topics.producer import EventProducer


@cache
def code_version() -> str:
    """Version of the package; in a checkout with the commit, and `.dirty` if files were changed since.

    Looked up once: that is the code that this process runs.
    """
    released = version("stepstream")
    here = Path(__file__)
    if not _git(here.parent, "ls-files", "--error-unmatch", here.name):
        return released
    commit = _git(here.parent, "rev-parse", "--short=12", "HEAD")
    changed = _git(here.parent, "status", "--porcelain", "--untracked-files=no")
    return f"{released}+g{commit}" + (".dirty" if changed else "")


def configuration_of(config: LearnerSettings) -> str:
    """The learner's settings and what else decides the last bits, as JSON.

    Also how many ranks trained; on CPUs that decides nothing.
    """
    return orjson.dumps(
        {
            "learner": config.model_dump(mode="json", exclude={"checkpoints"}),
            "arithmetic": arithmetic(config.device),
            "ranks": current_ranks().size,
        },
        option=orjson.OPT_SORT_KEYS,
    ).decode()


def arithmetic(device: str = "cpu") -> dict[str, str]:
    """What may change the last bits between machines: libraries, vector instructions, and what computes."""
    return {
        "torch": torch.__version__,
        "transformers": version("transformers"),
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "device": torch.cuda.get_device_name() if device == "cuda" else device,
    }


def recorded(configuration: str) -> tuple[LearnerSettings, dict[str, str]]:
    """The settings and the arithmetic that `configuration_of` wrote; settings that no longer exist are left out."""
    values: dict[str, Any] = orjson.loads(configuration)
    known = {name: value for name, value in values["learner"].items() if name in LearnerSettings.model_fields}
    return LearnerSettings.model_validate(known), values["arithmetic"]


def _git(folder: Path, *arguments: str) -> str:
    """What git answers; empty where it is missing, slow or refuses."""
    try:
        answer = subprocess.run(["git", "-C", folder, *arguments], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stdout.strip() if answer.returncode == 0 else ""


log = logging.getLogger(__name__)

INPUT = "labeled-trajectories"


def publish_root(settings: Settings, folder: Path, model: str, *, from_start: bool = False) -> Checkpoint:
    """Publishes a model's folder as the root of a new lineage, numbered after the newest version of the model.

    The folder is copied below the checkpoints folder. The new lineage reads labelled trajectories from now on, or with
    `from_start` all that the log has.

    Raises:
        CheckpointFault: the folder is not a model in Hugging Face form.
        KafkaUnavailable: no broker answers within its deadline.
    """
    wait_for_kafka(settings.kafka)
    with closing(Codec(settings.schema_registry)) as codec:
        newest = read_versions(settings.kafka, codec).newest(model)
        version = newest["version"] + 1 if newest else 0
        with EventConsumer(settings.kafka, codec) as consumer:
            start = {} if from_start else consumer.end_offsets(INPUT)
        target = version_folder(settings, model, version)
        checkpoint = _checkpoint(settings, model, version, target, write_root(folder, target), start)
        announce(EventProducer(settings.kafka, codec, SOURCE, linger_ms=0), checkpoint, Stop())
    return checkpoint


def publish_version(
    settings: Settings,
    producer: EventProducer,
    trainer: Trainer,
    parent: Checkpoint,
    parent_folder: Path,
    *,
    inputs: Sequence[UpdateInput],
    resume_offsets: Mapping[int, int],
    metrics: Mapping[str, float],
    stop: Stop,
) -> Checkpoint:
    """Publishes what the trainer holds as the version after `parent`.

    Raises:
        Fatal: asked to stop while the event was not acknowledged.
    """
    model, version = parent["model"], parent["version"] + 1
    target = version_folder(settings, model, version)
    checkpoint = _checkpoint(
        settings, model, version, target, write_version(trainer.snapshot(), parent_folder, target), resume_offsets
    )
    checkpoint["parent_version"] = parent["version"]
    checkpoint["inputs"] = list(inputs)
    checkpoint["updates"] = parent["updates"] + len(inputs)
    checkpoint["metrics"] = dict(metrics)
    announce(producer, checkpoint, stop)
    return checkpoint


def announce(producer: EventProducer, checkpoint: Checkpoint, stop: Stop) -> None:
    """Sends the event and waits until it is durable, for as long as broker and registry take.

    Raises:
        DeliveryFailed: Kafka refuses it for good.
        Fatal: asked to stop before it was durable.
    """
    send(producer, TOPIC, f"{checkpoint['model']}@{checkpoint['version']}", checkpoint, stop)
    settle(producer, stop)


def settle(producer: EventProducer, stop: Stop) -> None:
    """Blocks until everything that was sent is durable.

    Raises:
        DeliveryFailed: Kafka refuses it for good.
        Fatal: asked to stop before it was durable.
    """
    told = time.monotonic()
    while len(producer):
        producer.poll(0.1)
        if stop and len(producer) and time.monotonic() - told > 5.0:
            raise Fatal("stopped before the broker acknowledged what was sent") from None
    producer.flush()


def send(producer: EventProducer, topic: str, key: str, record: Checkpoint | DeadLetter, stop: Stop) -> None:
    """Queues an event; waits for a registry that does not answer.

    Raises:
        Fatal: asked to stop while waiting.
    """
    while True:
        try:
            return producer.send(topic, key, record)
        except RegistryUnavailable as error:
            log.warning("waiting for the schema registry: %s", error)
            if stop.wait(1.0):
                raise Fatal(f"stopped before an event for {topic} could be sent: {error}") from None


def partition_offsets(offsets: Mapping[int, int]) -> list[PartitionOffset]:
    """Offsets by partition in the form of events."""
    return [new_partition_offset(partition=p, offset=offset) for p, offset in sorted(offsets.items())]


def _checkpoint(
    settings: Settings,
    model: str,
    version: int,
    folder: Path,
    files: list[CheckpointFile],
    resume_offsets: Mapping[int, int],
) -> Checkpoint:
    return new_checkpoint(
        event_id=new_event_id(),
        occurred_at_us=now_us(),
        model=model,
        version=version,
        uri=folder.as_uri(),
        weights_sha256=weights_sha256(files),
        files=files,
        input_topic=INPUT,
        resume_offsets=partition_offsets(resume_offsets),
        configuration=configuration_of(settings.learner),
        code_version=code_version(),
    )

"""Publish versions: write the files durably, then send the checkpoint event and wait for its acknowledgement.

The event records the version's provenance (`provenance.py`).
"""

import logging
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

from stepstream.config import Settings
from stepstream.core.object_store import is_remote, upload
from stepstream.core.process import Fatal, Stop
from stepstream.crypto.signatures import BadKey, load_key
from stepstream.learner import SOURCE
from stepstream.learner.lineage import Versions, read_versions
from stepstream.learner.metrics import SHARED
from stepstream.learner.model.checkpoint import (
    cache_folder,
    checkpoints_folder,
    write_as_delta,
    write_copy,
    write_root,
    write_version,
)
from stepstream.learner.model.snapshot import Snapshot
from stepstream.learner.provenance import code_version, configuration_of
from stepstream.learner.unfinished import marked_address, marked_folder, remove_unfinished
from stepstream.topics.catalogue import CHECKPOINTS, LABELED_TRAJECTORIES
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
from stepstream.topics.exclusive_producer import ExclusiveProducer, Fenced
from stepstream.topics.ids import new_event_id, now_us
from stepstream.topics.producer import EventProducer
from stepstream.versions.cache import prune_folders
from stepstream.versions.layout import WEIGHTS, folder_name, weights_sha256
from stepstream.versions.shared_memory import SharedVersions
from stepstream.versions.signing import sign

log = logging.getLogger(__name__)

_ROOT_ATTEMPTS = 3
_GRACE_S = 5.0
"""Seconds after which `flush_producer` gives up once a stop was requested."""

T = TypeVar("T")


class Attempt(Protocol):
    """Calls a function that writes to the disk or the store; after an OSError it may call it again."""

    def __call__(self, step: Callable[[], T], /) -> T:
        """Return the result of `step`."""
        ...


def once(step: Callable[[], T]) -> T:
    """Call a function once."""
    return step()


def publish_root(settings: Settings, folder: Path, model: str, *, from_start: bool = False) -> Checkpoint:
    """Publish a model's folder as the root of a new lineage, numbered after the newest version of the model.

    A running learner of the model goes on from it; a version that it has in publication does not take effect. The
    folder is copied below the checkpoints folder. The new lineage reads labelled trajectories from now on, or from the
    beginning of the log with `from_start`. Blocks until the event is durable.

    Raises:
        CheckpointFault: the folder is not a model in Hugging Face form.
        Fatal: the store does not accept a file, or learners of the model keep taking over.
        KafkaUnavailable: no broker answers within its deadline.
    """
    wait_for_kafka(settings.kafka)
    with closing(Codec(settings)) as codec:
        with EventConsumer(settings.kafka, codec) as consumer:
            start = {} if from_start else consumer.end_offsets(LABELED_TRAJECTORIES)
        event_id = new_event_id()
        # The folder is named by the number that the version has if nobody publishes meanwhile.
        target = _local_target(settings, model, _next_version(settings, codec, model), event_id)
        with _marked(settings, model, [target], "models publish", _fatal):
            files = write_root(folder, target)
            uri = _fatal(lambda: _stored(settings, model, target))
            checkpoint = _announce_root(
                settings,
                codec,
                model,
                lambda version: _checkpoint(settings, model, version, event_id, uri, files, start),
            )
        if target.is_relative_to(_upload_folder(settings)):
            shutil.rmtree(target, ignore_errors=True)
    return checkpoint


def _announce_root(settings: Settings, codec: Codec, model: str, describe: Callable[[int], Checkpoint]) -> Checkpoint:
    """Send the event of a root as the owner of the model's versions, so that no learner takes the same number.

    A running learner is fenced, finds the root, and goes on from it.
    """
    stop = Stop()
    for _ in range(_ROOT_ATTEMPTS):
        producer = owner_of(settings, codec, model, stop)
        producer.take_over()
        checkpoint = describe(_next_version(settings, codec, model))
        sign_version(settings, checkpoint)
        try:
            announce(producer, checkpoint, stop)
        except Fenced as error:
            log.warning("a learner of '%s' took over meanwhile (%s): trying again", model, error)
        else:
            return checkpoint
    raise Fatal(f"'{model}' was not published: other learners of the model took over {_ROOT_ATTEMPTS} times; try again")


def _next_version(settings: Settings, codec: Codec, model: str) -> int:
    return newest["version"] + 1 if (newest := read_versions(settings.kafka, codec).newest(model)) else 0


def publish_version(
    settings: Settings,
    producer: EventProducer,
    snapshot: Snapshot,
    parent: Checkpoint,
    parent_folder: Path,
    *,
    event_id: str,
    inputs: Sequence[UpdateInput],
    resume_offsets: Mapping[int, int],
    metrics: Mapping[str, float],
    stop: Stop,
    adapter_base: int | None = None,
    shared: SharedVersions | None = None,
    attempt: Attempt = once,
    number: int | None = None,
) -> tuple[Checkpoint, Path]:
    """Publish a trainer's state as a version trained from `parent`. Other ranks call `Snapshot.help_write`.

    0. Before the call: decisions and dead letters about records before `resume_offsets` are durable.
    1. Write the files to a scratch folder, sync them, rename the folder, and upload it if versions are in a store. A
       crash up to here publishes nothing: no event names the files.
    2. Describe the version in a checkpoint event: hashes of the files, trained log positions, offsets to resume at,
       settings, code version. Sign it.
    3. Send the event and wait for Kafka's acknowledgement. From then on the version exists.
    4. Return the event, from which the learner continues, and a local folder with the complete version (its adapters,
       in the form `lora`).

    Args:
        settings: settings.
        producer: owner of the model's versions.
        snapshot: state of the trainer.
        parent: version that the updates began from.
        parent_folder: its local folder.
        event_id: id of the version's event.
        inputs: trained log positions.
        resume_offsets: offsets at which a learner of this version starts to read.
        metrics: figures of the updates.
        stop: ends waits.
        adapter_base: version that the policy's adapters belong to; None: no version has exactly these weights.
        shared: keeps a copy in memory for workers on this machine.
        attempt: calls each part of step 1, again after an OSError if it wants. The event is sent once.
        number: number of the version; None: the one after `parent`.

    Raises:
        Fenced: another learner of the model took over.
        DeliveryFailed: Kafka rejected the event.
        Fatal: a stop was requested before the event was durable.
        OSError: the disk or the store does not accept a file, and `attempt` gave up.
    """
    model, version = parent["model"], parent["version"] + 1 if number is None else number
    is_delta_form = settings.learner.version_format == "delta"
    published = _local_target(settings, model, version, event_id)
    folder = _local_target(settings, model, version, event_id, keep=True) if is_delta_form else published
    lora = settings.learner.version_format == "lora" and adapter_base is not None
    with _marked(settings, model, dict.fromkeys((folder, published)), owner_id(model), attempt):
        files = attempt(lambda: write_version(snapshot, parent_folder, folder, adapters_only=lora))
        digest, delta = weights_sha256(files), None
        if is_delta_form:
            # Retention may remove an older parent just before the event is on the log; the newest version it keeps.
            is_whole = version % settings.learner.full_every == 0 or version != parent["version"] + 1
            delta = None if is_whole else attempt(lambda: write_as_delta(folder, parent_folder, published))
            files = attempt(lambda: write_copy(folder, published)) if delta is None else delta
        uri = attempt(lambda: _stored(settings, model, published))
        checkpoint = _checkpoint(settings, model, version, event_id, uri, files, resume_offsets)
        checkpoint["weights_sha256"] = digest
        checkpoint["format"] = "lora" if lora else "full" if delta is None else "delta"
        checkpoint["base_version"] = adapter_base if lora else None if delta is None else parent["version"]
        checkpoint["parent_version"] = parent["version"]
        checkpoint["inputs"] = list(inputs)
        checkpoint["updates"] = parent["updates"] + len(inputs)
        checkpoint["metrics"] = dict(metrics)
        sign_version(settings, checkpoint)
        if shared is not None and (outcome := shared.put(version, event_id, folder / WEIGHTS)):
            SHARED.labels(outcome).inc()
        announce(producer, checkpoint, stop)
    if any(parent_folder.is_relative_to(own) for own in (_kept_folder(settings), _upload_folder(settings))):
        shutil.rmtree(parent_folder, ignore_errors=True)
    if published != folder and published.is_relative_to(_upload_folder(settings)):
        shutil.rmtree(published, ignore_errors=True)
    return checkpoint, folder


def remove_leftovers(settings: Settings, versions: Versions) -> None:
    """Remove what crashes left of versions of the configured model; for the owner of its versions."""
    model = settings.learner.model
    folders = [checkpoints_folder(settings), _kept_folder(settings), _upload_folder(settings)]
    remove_unfinished(
        versions.by_model.get(model, {}).values(),
        [folder / model for folder in folders],
        settings.learner.checkpoints,
        model,
        owner_id(model),
    )


def prune_version_cache(settings: Settings, keep: Iterable[Path]) -> None:
    """Remove downloaded and completed versions of the configured model above `learner.version_cache_bytes`."""
    parts = (cache_folder(settings), _kept_folder(settings), _upload_folder(settings))
    folders = [path for part in parts for path in part.glob(f"{settings.learner.model}/*")]
    try:
        prune_folders(folders, settings.learner.version_cache_bytes, list(keep))
    except OSError as error:
        log.warning("the cache of versions was not pruned, the next version tries again: %s", error)


@contextmanager
def _marked(settings: Settings, model: str, folders: Iterable[Path], owner: str, attempt: Attempt) -> Iterator[None]:
    """Mark local folders of one version, and its address in a store, until the block ends without a fault."""
    address = settings.learner.checkpoints
    with ExitStack() as stack:

        def mark_folder(folder: Path) -> None:
            stack.enter_context(marked_folder(folder, model))

        def mark_address(name: str) -> None:
            with _named(address):
                stack.enter_context(marked_address(address, model, name, owner))

        for folder in folders:
            attempt(partial(mark_folder, folder))
            name = folder.name
        attempt(partial(mark_address, name))
        yield


def _local_target(settings: Settings, model: str, version: int, event_id: str, *, keep: bool = False) -> Path:
    """Return the folder to write a version to; with `keep`, or if versions are in a store, one that only serves us.

    The event's id keeps two learners from writing to the same folder.
    """
    remote = is_remote(settings.learner.checkpoints)
    root = _kept_folder(settings) if keep else _upload_folder(settings) if remote else None
    return (root or checkpoints_folder(settings)) / model / folder_name(version, event_id)


def _kept_folder(settings: Settings) -> Path:
    """Return the folder of complete versions that the next delta is made from."""
    return cache_folder(settings) / "complete"


def _upload_folder(settings: Settings) -> Path:
    """Return the folder of versions on their way to a store; the newest stays for the next version to begin from."""
    return cache_folder(settings) / "upload"


def _stored(settings: Settings, model: str, folder: Path) -> str:
    """Return the address of a version's folder, after its upload if versions are in a store.

    Raises:
        OSError: the store does not accept a file.
    """
    address = settings.learner.checkpoints
    if not is_remote(address):
        return folder.as_uri()
    uri = f"{address.rstrip('/')}/{model}/{folder.name}"
    with _named(uri):
        upload(folder, uri)
    return uri


@contextmanager
def _named(uri: str) -> Iterator[None]:
    """Let an error of the store name the setting and the address."""
    try:
        yield
    except OSError as error:
        raise OSError(f"learner.checkpoints: {uri} cannot be written: {error}") from error


def _fatal(step: Callable[[], T]) -> T:
    try:
        return step()
    except OSError as error:
        raise Fatal(f"{error}; the version is not published") from error


def owner_id(model: str) -> str:
    """Return the transactional id of the producer of a model's versions."""
    return f"learner/{model}"


def owner_of(settings: Settings, codec: Codec, model: str, stop: Stop) -> ExclusiveProducer:
    """Return the producer of a model's versions; `take_over` fences the learner that had the model before."""
    return ExclusiveProducer(settings.kafka, codec, SOURCE, owner_id(model), lambda: bool(stop))


def sign_version(settings: Settings, checkpoint: Checkpoint) -> None:
    """Sign the version if `learner.signing_key` is set.

    Raises:
        Fatal: the file has no private key.
    """
    try:
        if file := settings.learner.signing_key:
            checkpoint["signatures"] = [sign(checkpoint, load_key(Path(file)))]
    except BadKey as error:
        raise Fatal(f"learner.signing_key: {error}") from None


def announce(producer: EventProducer, checkpoint: Checkpoint, stop: Stop) -> None:
    """Send the event and block until it is durable, without a time limit.

    Raises:
        DeliveryFailed: Kafka rejected the event.
        Fatal: a stop was requested before it was durable.
    """
    send(producer, CHECKPOINTS, f"{checkpoint['model']}@{checkpoint['version']}", checkpoint, stop)
    flush_producer(producer, stop)


def send(producer: EventProducer, topic: str, key: str, record: Checkpoint | DeadLetter, stop: Stop) -> None:
    """Queue an event. Blocks while the schema registry is unavailable.

    Raises:
        Fatal: a stop was requested during the wait.
    """
    while True:
        try:
            return producer.send(topic, key, record)
        except RegistryUnavailable as error:
            log.warning("waiting for the schema registry: %s", error)
            if stop.wait(1.0):
                raise Fatal(f"stopped before an event for {topic} could be sent: {error}") from None


def flush_producer(producer: EventProducer, stop: Stop) -> None:
    """Block until every queued event is durable.

    Raises:
        DeliveryFailed: Kafka rejected an event.
        Fatal: a stop was requested, and events were not acknowledged within 5 seconds.
    """
    started_s = time.monotonic()
    while len(producer):
        producer.poll(0.1)
        if stop and len(producer) and time.monotonic() - started_s > _GRACE_S:
            raise Fatal("stopped before the broker acknowledged the events in flight") from None
    producer.flush()


def _checkpoint(
    settings: Settings,
    model: str,
    version: int,
    event_id: str,
    uri: str,
    files: list[CheckpointFile],
    resume_offsets: Mapping[int, int],
) -> Checkpoint:
    return new_checkpoint(
        event_id=event_id,
        occurred_at_us=now_us(),
        model=model,
        version=version,
        uri=uri,
        weights_sha256=weights_sha256(files),
        files=files,
        input_topic=settings.kafka.prefix + LABELED_TRAJECTORIES,
        resume_offsets=partition_offsets(resume_offsets),
        configuration=configuration_of(settings.learner),
        code_version=code_version(),
    )


def partition_offsets(offsets: Mapping[int, int]) -> list[PartitionOffset]:
    """Return offsets by partition in the form of the event."""
    return [new_partition_offset(partition=p, offset=offset) for p, offset in sorted(offsets.items())]

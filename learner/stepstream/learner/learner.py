"""Run the learner: continue its model from the newest version, train on labelled trajectories, publish the next one.

After the newest version was taken back, it continues from the stable one.

All state is in checkpoints and in the log. After a crash at any point the learner continues from the last published
version, trains on nothing twice within a lineage and loses only unpublished updates.
"""

import logging
import time

from confluent_kafka import KafkaError, KafkaException

from stepstream.config import Settings
from stepstream.core.process import Fatal, Stop, serve_metrics
from stepstream.crypto.key_ring import sealing_codec
from stepstream.jobs.runtime.retry import Cancelled
from stepstream.learner import SOURCE
from stepstream.learner.lineage import UnknownVersion, Versions, read_versions
from stepstream.learner.lineage_training import LineageTraining
from stepstream.learner.model.checkpoint import cache_folder
from stepstream.learner.model.pretrained import CannotTrain
from stepstream.learner.model_control import ModelControl
from stepstream.learner.publish import owner_of, remove_leftovers
from stepstream.learner.reporter import BackgroundSender
from stepstream.learner.retention import Retention
from stepstream.topics.access import wait_for_access
from stepstream.topics.codec import Codec
from stepstream.topics.exclusive_producer import Fenced
from stepstream.topics.producer import EventProducer
from stepstream.versions.cache import remove_partial
from stepstream.versions.layout import VersionRejected
from stepstream.versions.shared_memory import SharedVersions

log = logging.getLogger(__name__)

_ROOT_WAIT_S = 10.0
"""Time in which a learner that was fenced waits for a new root, from `stepstream models publish`."""


def main(settings: Settings, stop: Stop) -> None:
    """Train until `stop` is set.

    Raises:
        Fatal: a checkpoint's files differ from the published ones, a topic or a right is missing, another learner
            trains the same model, or the model cannot be trained.
    """
    serve_metrics(settings.metrics)
    wait_for_access(settings.kafka, "learner", lambda: bool(stop))
    codec = sealing_codec(settings)
    producer = EventProducer(settings.kafka, codec, SOURCE, linger_ms=0)
    sender = BackgroundSender(settings.kafka, codec, stop)
    retention = Retention(settings, codec, stop)
    shared = SharedVersions(settings.paths.shared_memory, settings.learner.model, settings.learner.shared_memory_bytes)
    control = ModelControl(settings)
    try:
        retention.take_over()
        remove_partial(cache_folder(settings))
        while not stop:
            if _wait_for_version(settings, codec, stop) is None or not control.wait_read(stop):
                break
            # A new producer each time: `stepstream models publish` fences the one of the lineage before.
            owner = owner_of(settings, codec, settings.learner.model, stop)
            owner.take_over()
            versions = read_versions(settings.kafka, codec)
            remove_leftovers(settings, versions)
            lineage = LineageTraining(
                settings, codec, producer, owner, sender, retention, shared, versions, control, stop
            )
            try:
                lineage.train()
            except Fenced:
                if not _finds_new_root(settings, codec, lineage, stop):
                    raise
    except (VersionRejected, CannotTrain, UnknownVersion) as error:
        raise Fatal(str(error)) from error
    except Fenced as error:
        raise Fatal(
            f"another learner of '{settings.learner.model}' started and took over ({error}): this one ends and "
            "publishes nothing more; run only one learner per model"
        ) from None
    except KafkaException as error:
        if error.args[0].code() in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC):
            raise Fatal(f"a topic is missing ({error.args[0].str()}): run `stepstream topics apply`") from error
        raise
    except Cancelled:
        return  # stopped while the broker was unavailable
    finally:
        control.close()
        shared.close()
        retention.close()
        sender.close()


def _wait_for_version(settings: Settings, codec: Codec, stop: Stop) -> Versions | None:
    """Wait until the configured model has a version and return all versions; None if `stop` is set first."""
    model, logged = settings.learner.model, False
    while not stop:
        versions = read_versions(settings.kafka, codec)
        if versions.newest(model) is not None:
            return versions
        if not logged:
            log.info("waiting for a first version of '%s': publish one with `stepstream models publish`", model)
            logged = True
        stop.wait(0.5)
    return None


def _finds_new_root(settings: Settings, codec: Codec, lineage: LineageTraining, stop: Stop) -> bool:
    """Return True if `stepstream models publish` fenced this learner: its root follows within seconds."""
    ends_s = time.monotonic() + _ROOT_WAIT_S
    while True:
        versions = read_versions(settings.kafka, codec)
        if lineage.ends_at(versions):
            return True
        if lineage.is_continued_in(versions) or stop or time.monotonic() > ends_s:
            return False
        stop.wait(0.2)

"""The learner's shell: follows the newest version of its model, trains on what its agents did, publishes the next.

All state is in checkpoints and in the log: after a crash at any point it continues from the last published version,
trains on nothing twice within a lineage, and has lost only what was not published.
"""

import logging
import time
from collections.abc import Iterable
from contextlib import closing

from confluent_kafka import KafkaError, KafkaException

from stepstream.config import Settings
from stepstream.core.process import Fatal, Stop, serve_metrics
from stepstream.crypto.key_ring import codec_of
from stepstream.jobs.runtime.retry import Cancelled
from stepstream.learner import SOURCE, metrics
from stepstream.learner.data.attempt import Attempt, LogPosition
from stepstream.learner.data.learning_signal import learning_signal_of
from stepstream.learner.data.reader import Arrival, Reader, read_decisions
from stepstream.learner.data.replay_buffer import ReplayBuffer
from stepstream.learner.data.requirements import requirements_of
from stepstream.learner.data.sampler import sampler_of
from stepstream.learner.decisions import Decider
from stepstream.learner.lineage import UnknownVersion, Versions, offsets_of, read_versions, uses_of
from stepstream.learner.model.checkpoint import CheckpointFault, folder_of, verify
from stepstream.learner.model.pretrained import CannotTrain
from stepstream.learner.model.reference import reference_folder
from stepstream.learner.publish import INPUT, publish_version, send, settle
from stepstream.learner.reporter import BackgroundSender, Reporter
from stepstream.learner.training.rank_zero import trainer_for
from stepstream.topics.client import wait_for_kafka
from stepstream.topics.codec import Codec
from stepstream.topics.consumer import EventConsumer
from stepstream.topics.events import Checkpoint, DeadLetter, UpdateInput, new_update_input
from stepstream.topics.producer import EventProducer

log = logging.getLogger(__name__)

_WAITS, _WAIT_S = 5, 0.02
"""How often, and for how many seconds at once, records are waited for before groups are looked at again."""


def main(settings: Settings, stop: Stop) -> None:
    """Runs until `stop`.

    Raises:
        Fatal: a fault that it cannot mend: a checkpoint's files are not what was published, topics are missing,
            another learner trains the same model.
    """
    serve_metrics(settings.metrics)
    wait_for_kafka(settings.kafka, lambda: bool(stop))
    codec = codec_of(settings)
    producer = EventProducer(settings.kafka, codec, SOURCE, linger_ms=0)
    outbox = BackgroundSender(settings.kafka, codec, stop)
    try:
        while not stop:
            versions = _wait_for_version(settings, codec, stop)
            if versions is not None:
                _Lineage(settings, codec, producer, outbox, versions, stop).train()
    except (CheckpointFault, CannotTrain, UnknownVersion) as error:
        raise Fatal(str(error)) from error
    except KafkaException as error:
        if error.args[0].code() in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC):
            raise Fatal(f"a topic is missing ({error.args[0].str()}): run `stepstream topics apply`") from error
        raise
    except Cancelled:
        return  # asked to stop while the broker was away
    finally:
        outbox.close()


def _wait_for_version(settings: Settings, codec: Codec, stop: Stop) -> Versions | None:
    """The versions as soon as there is one of our model; None when asked to stop."""
    model, told = settings.learner.model, False
    while not stop:
        versions = read_versions(settings.kafka, codec)
        if versions.newest(model) is not None:
            return versions
        if not told:
            log.info("waiting for a first version of '%s': publish one with `stepstream models publish`", model)
            told = True
        stop.wait(0.5)
    return None


class _Lineage:
    """Training one lineage from its newest version on, until asked to stop or until a new root is published."""

    def __init__(
        self,
        settings: Settings,
        codec: Codec,
        producer: EventProducer,
        outbox: BackgroundSender,
        versions: Versions,
        stop: Stop,
    ) -> None:
        self._settings, self._codec, self._producer, self._stop = settings, codec, producer, stop
        self._config = settings.learner
        newest = versions.newest(self._config.model)
        assert newest is not None
        self._base: Checkpoint = newest
        self._folder = folder_of(self._base["uri"])
        verify(self._folder, self._base["files"])
        line = versions.lineage(self._base)
        start, root = offsets_of(self._base), line[-1]["version"]
        self._uses = uses_of(line, start)
        self._check_log(self._uses)
        decider = Decider(self._config.model, root)
        needs = requirements_of(self._config)
        # What was given up by a learner of an older version is stale by now, whatever comes, if that matters.
        oldest = min(self._config.staleness_bound, len(line) - 1) if needs.fresh else -1
        since = line[oldest]["occurred_at_us"]
        given_up = decider.given_up(read_decisions(settings.kafka, codec, since, stop))
        self._journal = Reporter(decider, outbox)
        self._trainer = trainer_for(self._folder, self._config, reference_folder(line[-1], self._config))
        self._inputs: list[UpdateInput] = []
        self._figures: list[dict[str, float]] = []
        self._buffer = ReplayBuffer(
            group_size=self._config.group_size,
            wait_s=self._config.group_wait_s,
            staleness_bound=self._config.staleness_bound,
            root=root,
            version=self._base["version"],
            positions=start,
            trained=(place for place, uses in self._uses.items() for _ in uses),
            given_up=given_up,
            reuse=self._config.reuse,
            choice=sampler_of(self._config),
            lesson=learning_signal_of(self._config),
            needs=needs,
        )
        metrics.VERSION.set(self._base["version"])
        log.info(
            "training %s@%d, root %d, update %d",
            self._config.model, self._base["version"], root, self._base["updates"],
        )  # fmt: skip

    def train(self) -> None:
        """Runs until asked to stop or until a newer lineage has begun."""
        limits = self._trainer.limits(self._config.model)
        with closing(Reader(self._settings.kafka, self._codec, limits, offsets_of(self._base))) as reader:
            while not self._stop:
                if self._take_in(reader):
                    return
                with self._journal.time("fold"):
                    groups = self._buffer.take(self._config.groups_per_update, self._next_update())
                if groups is not None:
                    self._update(groups)
                    if len(self._inputs) >= self._config.updates_per_checkpoint:
                        self._publish()

    def _next_update(self) -> int:
        return self._base["updates"] + len(self._inputs) + 1

    def _take_in(self, reader: Reader) -> bool:
        """Folds what has been read, waiting a little if nothing was; True if a new root has been published."""
        arrivals = reader.next(0.0)
        if not arrivals and not self._buffer.has(self._config.groups_per_update, self._next_update()):
            arrivals = self._wait(reader)
        with self._journal.time("fold"):
            while arrivals:
                for arrival in arrivals:
                    if self._fold(arrival):
                        return True
                arrivals = reader.next(0.0)
            self._buffer.give_up(time.monotonic())
            self._count()
        return False

    def _wait(self, reader: Reader) -> list[Arrival]:
        """What comes within a moment. While the log has more than the reader hands over, the reader is waited for."""
        for _ in range(_WAITS):
            with self._journal.time("read" if reader.is_behind() else "wait"):
                arrivals = reader.next(_WAIT_S)
            if arrivals:
                return arrivals
        return []

    def _fold(self, arrival: Arrival) -> bool:
        """Folds one record; True if it is a new root."""
        if arrival.checkpoint is not None:
            return self._is_new_root(arrival.checkpoint)
        if arrival.refusal is not None:
            self._refuse(arrival.refusal)
        if arrival.attempt is not None:
            metrics.READ.inc()
            # A crash may have come between the version and the decisions that tell what is in it.
            self._journal.trained([arrival.attempt], self._uses.pop(arrival.place, []))
            self._buffer.add(arrival.attempt, time.monotonic())
        elif arrival.refusal is not None:
            self._buffer.see(arrival.place)
        return False

    def _is_new_root(self, checkpoint: Checkpoint) -> bool:
        """Whether to leave this lineage for a newer one."""
        if checkpoint["model"] != self._config.model or checkpoint["version"] <= self._base["version"]:
            return False
        name = f"{checkpoint['model']}@{checkpoint['version']}"
        if checkpoint["parent_version"] is None:
            log.info("%s begins a new lineage: leaving %d", name, self._base["version"])
            return True
        raise Fatal(f"{name} was published by another learner: run one learner for a model")

    def _update(self, groups: list[list[Attempt]]) -> None:
        version, number = self._base["version"], self._next_update()
        attempts = [attempt for group in groups for attempt in group]
        with self._journal.time("train"):
            figures = self._trainer.update(number, groups, version)
        self._inputs.append(
            new_update_input(
                update=number,
                partitions=[attempt.place[0] for attempt in attempts],
                offsets=[attempt.place[1] for attempt in attempts],
            )
        )
        self._figures.append(figures)
        self._journal.updated(number, version, groups, figures, self._trainer.lags)

    def _publish(self) -> None:
        with self._journal.time("publish"):
            # What was decided and refused is durable before offsets pass the records.
            self._journal.flush()
            settle(self._producer, self._stop)
            self._base = publish_version(
                self._settings,
                self._producer,
                self._trainer,
                self._base,
                self._folder,
                inputs=self._inputs,
                resume_offsets=self._buffer.resume_offsets(),
                metrics=_summary(self._figures),
                stop=self._stop,
            )
        self._folder = folder_of(self._base["uri"])
        self._inputs, self._figures = [], []
        self._journal.published(self._base["version"])
        self._buffer.advance(self._base["version"])
        self._count()
        figures = self._base["metrics"]
        metrics.VERSION.set(self._base["version"])
        log.info(
            "published %s@%d: reward %.3f, loss %.4f, staleness at most %.0f, clip share %.3f, effective share %.2f",
            self._base["model"], self._base["version"], figures["reward"], figures["loss"], figures["staleness_max"],
            figures["clip_share"], figures["effective_share"],
        )  # fmt: skip

    def _refuse(self, refusal: DeadLetter) -> None:
        """Queues a dead letter; it is durable before the next version's offsets pass the record."""
        log.warning("dead letter, offset %d: %s: %s", refusal["offset"], refusal["error"], refusal["reason"])
        metrics.REFUSED.labels(refusal["error"]).inc()
        send(self._producer, "dead-letters", (refusal["key"] or b"").decode(), refusal, self._stop)
        self._producer.poll()

    def _count(self) -> None:
        self._journal.let_go(self._buffer.fates(), self._base["version"])
        metrics.DUPLICATES.inc(self._buffer.dropped.pop("duplicate", 0))
        metrics.READY.set(self._buffer.ready())
        metrics.WAITING.set(self._buffer.waiting())

    def _check_log(self, trained: Iterable[LogPosition]) -> None:
        """What the lineage trained on must be in this log, or the addresses are wrong."""
        with EventConsumer(self._settings.kafka, self._codec) as consumer:
            ends = consumer.end_offsets(INPUT)
        beyond = [place for place in trained if place[1] >= ends.get(place[0], 0)]
        if beyond:
            name = f"{self._base['model']}@{self._base['version']}"
            raise Fatal(
                f"{name} was trained on {INPUT} partition {beyond[0][0]} offset {beyond[0][1]}, which this cluster "
                "does not have: is STEPSTREAM_KAFKA_BOOTSTRAP right, or was the topic made anew?"
            )


def _summary(figures: list[dict[str, float]]) -> dict[str, float]:
    """Figures of several updates as one: means, maxima of what ends in `_max`, sums of counts."""
    summary = {}
    for name in figures[0]:
        values = [figure[name] for figure in figures]
        if name.endswith("_max"):
            summary[name] = max(values)
        elif name in ("tokens", "sequences", "steps_skipped"):
            summary[name] = sum(values)
        else:
            summary[name] = sum(values) / len(values)
    return summary

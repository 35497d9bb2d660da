"""Train one lineage: read labelled trajectories, update the policy, publish the next versions in the background."""

import logging
import time
from collections.abc import Iterable
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

from stepstream.config import Settings
from stepstream.core.process import Fatal, Stop
from stepstream.learner import metrics
from stepstream.learner.background_publisher import BackgroundPublisher
from stepstream.learner.data.attempt import Attempt, LogPosition, without_gaps
from stepstream.learner.data.learning_signal import learning_signal_of
from stepstream.learner.data.reader import Arrival, read_alarms, read_decisions
from stepstream.learner.data.reader_process import AheadReader, open_reader
from stepstream.learner.data.replay_buffer import ReplayBuffer
from stepstream.learner.data.requirements import requirements_of
from stepstream.learner.data.sampler import sampler_of
from stepstream.learner.decisions import Decider
from stepstream.learner.gap_alarm import GapAlarm
from stepstream.learner.lineage import Versions, left_out, of_log, offsets_of, uses_of, warn_without_training
from stepstream.learner.model import lora
from stepstream.learner.model.checkpoint import cache_folder
from stepstream.learner.model.reference import reference_folder
from stepstream.learner.model_control import ModelControl
from stepstream.learner.publish import flush_producer, prune_version_cache, send
from stepstream.learner.reporter import BackgroundSender, Reporter
from stepstream.learner.retention import Retention
from stepstream.learner.training.rank_zero import trainer_for
from stepstream.learner.training.update_stats import gap_warning, summary_of
from stepstream.topics.catalogue import DEAD_LETTERS, LABELED_TRAJECTORIES
from stepstream.topics.codec import Codec
from stepstream.topics.consumer import EventConsumer
from stepstream.topics.events import Checkpoint, DeadLetter, UpdateInput, new_update_input
from stepstream.topics.ids import now_us
from stepstream.topics.producer import EventProducer
from stepstream.versions.fetch import fetch_whole
from stepstream.versions.layout import name_of
from stepstream.versions.shared_memory import SharedVersions

log = logging.getLogger(__name__)

_MB = 1_000_000
_JOIN_S = 0.5
_PAUSE_S = 0.1
_POLLS, _POLL_S = 5, 0.02
"""Number of reads, and seconds that each waits for records, before groups are checked again."""


class LineageTraining:
    """The training of one lineage, until `stop` is set, a new root is published, a version of it is taken back, or
    labels that updates since the last version trained on are excluded.

    `_base` is the newest durable version, `_version` the one that the weights are: the next while it is in publication.
    It begins from the newest version; after that one was taken back, from the stable one. Numbers in memory count the
    versions of the line alone (`without_gaps`), so that the base counts as `_newest`, the highest number in use.
    """

    def __init__(
        self,
        settings: Settings,
        codec: Codec,
        producer: EventProducer,
        owner: EventProducer,
        sender: BackgroundSender,
        retention: Retention,
        shared: SharedVersions,
        versions: Versions,
        control: ModelControl,
        stop: Stop,
    ) -> None:
        self._settings, self._codec, self._stop = settings, codec, stop
        self._producer, self._retention = producer, retention
        self._config = settings.learner
        newest, base = versions.newest(self._config.model), versions.parent_of_next(self._config.model, control.rollout)
        assert newest is not None
        assert base is not None
        self._base: Checkpoint = base
        self._version = self._newest = newest["version"]
        self._control, self._known_bad = control, control.taken_back
        self._updates_before = base["updates"]
        self._folder = self._fetch(versions, self._base)
        warn_without_training(self._base)
        line = versions.lineage(self._base)
        self._left_out = left_out(line, self._newest)
        self._root = line[-1]["version"]
        own, root = of_log(line, settings.kafka.prefix), line[-1]["version"]
        start = self._start = offsets_of(self._base) if self._base in own else {}
        # The same updates of the same version would do the same harm again.
        harmful = versions.present(self._config.model, self._left_out & self._known_bad)
        self._uses = uses_of([*own, *of_log(harmful, settings.kafka.prefix)], start)
        self._check_log(self._uses)
        decider = Decider(self._config.model, root)
        requirements = requirements_of(self._config)
        # Older decisions are skipped if attempts must be fresh: their groups exceed `staleness_bound`.
        oldest = min(self._config.staleness_bound, len(line) - 1) if requirements.fresh else -1
        # Positions of copied versions are of another log: the copied decisions tell what their updates used.
        is_copied = len(own) < len(line)
        since_us = line[-1 if is_copied else oldest]["occurred_at_us"]
        decisions = read_decisions(settings.kafka, codec, since_us, stop)
        abandoned = decider.decided_attempts(decisions) if is_copied else decider.abandoned_attempts(decisions)
        self._reporter = Reporter(decider, sender)
        alarms = read_alarms(settings.kafka, codec, stop)
        self._gap_alarm = GapAlarm(self._config.model, self._config.max_mu_gap, alarms)
        metrics.GAP_ALARM.set(self._gap_alarm.active is not None)
        reference = reference_folder(line[-1], self._config, partial(self._fetch, versions))
        adapter_base, used = self._base_of_adapters(), [reference] if reference else []
        self._publisher = BackgroundPublisher(
            settings, owner, self._base, self._folder, self._newest, adapter_base, stop, shared, used
        )
        prune_version_cache(settings, [self._folder, *used])
        self._trainer = trainer_for(self._folder, self._config, reference)
        self._updates: list[UpdateInput] = []
        self._update_figures: list[dict[str, float]] = []
        self._update_specs: set[str] = set()
        self._buffer = ReplayBuffer(
            group_size=self._config.group_size,
            wait_s=self._config.group_wait_s,
            staleness_bound=self._config.staleness_bound,
            root=root,
            version=self._version,
            positions=start,
            trained=(position for position, uses in self._uses.items() for _ in uses),
            abandoned=abandoned,
            reuse=self._config.reuse,
            sampler=sampler_of(self._config),
            signal=learning_signal_of(self._config),
            requirements=requirements,
            excluded_specs=control.excluded_specs,
        )
        metrics.VERSION.set(self._base["version"])
        self._retention.prune_after(self._base)
        log.info(
            "training %s@%d, root %d, update %d",
            self._config.model, self._base["version"], root, self._base["updates"],
        )  # fmt: skip

    def _fetch(self, versions: Versions, checkpoint: Checkpoint) -> Path:
        return fetch_whole(checkpoint, versions.find, cache_folder(self._settings))

    def _base_of_adapters(self) -> int | None:
        """Return the version that has exactly the weights below the adapters; None: no version is known to."""
        if not self._config.lora_rank:
            return None
        if not lora.continues(self._folder, self._config):
            return self._base["version"]
        if self._base["format"] == "lora":
            return self._base["base_version"]
        if self._config.version_format == "lora":
            log.warning(
                "learner.version_format=lora, but no version has the weights below the adapters of %s: its versions "
                "stay complete; to switch, publish %s as a new root with `stepstream models publish`",
                name_of(self._base), self._base["uri"],
            )  # fmt: skip
        return None

    def train(self) -> None:
        """Read, update and publish until `stop` is set or a newer lineage begins."""
        limits = self._trainer.limits(self._config.model)
        with closing(open_reader(self._settings, self._codec, limits, self._start)) as reader:
            while not self._stop:
                self._take_published()
                if self._is_taken_back() or self._has_trained_on_excluded():
                    break
                if self._control.paused:
                    with self._reporter.time("wait"):
                        self._stop.wait(_PAUSE_S)
                    continue
                if self._read_arrivals(reader):
                    break
                with self._reporter.time("fold"):
                    groups = self._buffer.take(self._config.groups_per_update, self._next_update())
                if groups is not None:
                    self._update(groups)
                    if len(self._updates) >= self._config.updates_per_checkpoint:
                        self._start_version()
        self._await_published()

    def is_continued_in(self, versions: Versions) -> bool:
        """Return True if another learner published a version after this one's newest."""
        newest = versions.newest(self._config.model)
        return newest is not None and newest["version"] > self._newest

    def ends_at(self, versions: Versions) -> bool:
        """Return True if the model's newest version is the root of a newer lineage."""
        newest = versions.newest(self._config.model)
        is_new = newest is not None and newest["parent_version"] is None and newest["version"] > self._newest
        if is_new and newest is not None:
            log.info("%s begins a new lineage: training ends at version %d", name_of(newest), self._base["version"])
        return is_new

    def _is_taken_back(self) -> bool:
        """Return True if a version of the line was taken back since the training began."""
        new = self._control.taken_back - self._known_bad - self._left_out
        bad = [version for version in sorted(new) if self._root <= version <= self._newest]
        if bad:
            log.info("version %s was taken back: training goes on from the stable version", bad)
        return bool(bad)

    def _has_trained_on_excluded(self) -> bool:
        """Exclude labels as decided; return True if updates since the last version have trained on such labels."""
        excluded = self._control.excluded_specs
        self._buffer.exclude_specs(excluded)
        self._count()
        bad = sorted(excluded & self._update_specs)
        if bad:
            log.info("reward specification %s was excluded: the updates since the last version are discarded", bad)
        return bool(bad)

    def _is_full(self) -> bool:
        """Return True if ready groups take more memory than allowed, and the next update can take some of them."""
        is_over = self._buffer.ready_bytes() > self._config.ready_mb * _MB
        return is_over and self._buffer.has(self._config.groups_per_update, self._next_update())

    def _next_update(self) -> int:
        return self._updates_before + len(self._updates) + 1

    def _read_arrivals(self, reader: AheadReader) -> bool:
        """Fold the records read so far; wait briefly if there are none and no group is ready.

        Returns:
            True if a new root was published.
        """
        if self._is_full():
            return False
        arrivals = reader.next(0.0)
        if not arrivals and not self._buffer.has(self._config.groups_per_update, self._next_update()):
            arrivals = self._wait(reader)
        with self._reporter.time("fold"):
            while arrivals:
                for arrival in arrivals:
                    if self._fold(arrival):
                        return True
                arrivals = [] if self._is_full() else reader.next(0.0)
            self._buffer.expire_groups(time.monotonic())
            self._count()
        return False

    def _wait(self, reader: AheadReader) -> list[Arrival]:
        """Return the next records, or none after a tenth of a second."""
        for _ in range(_POLLS):
            # While the log has more records, the learner waits for the reader, not for agents.
            with self._reporter.time("read" if reader.is_behind() else "wait"):
                arrivals = reader.next(_POLL_S)
            if arrivals:
                return arrivals
        return []

    def _fold(self, arrival: Arrival) -> bool:
        """Fold one record; return True if it is a new root."""
        if arrival.checkpoint is not None:
            return self._is_new_root(arrival.checkpoint)
        if arrival.dead_letter is not None:
            self._send_dead_letter(arrival.dead_letter)
        if arrival.attempt is not None:
            metrics.READ.inc()
            # A crash may have come between the version and its decisions: send them again.
            uses = self._uses.pop(arrival.position, [])
            self._reporter.report_trained([arrival.attempt], uses)
            self._buffer.add(self._of_line(arrival.attempt, is_trained=bool(uses)), time.monotonic())
        elif arrival.dead_letter is not None:
            self._buffer.mark_read(arrival.position)
        return False

    def _of_line(self, attempt: Attempt, *, is_trained: bool) -> Attempt:
        """Return an attempt with numbers that count the versions of the line; excluded if one taken back sampled it."""
        if attempt.version_min in self._left_out and not is_trained and not attempt.untrainable:
            return replace(attempt, untrainable="other_lineage")
        return without_gaps(attempt, self._left_out, self._root)

    def _is_new_root(self, checkpoint: Checkpoint) -> bool:
        """Return True if the checkpoint begins a newer lineage of the model.

        Raises:
            Fatal: another learner continued this lineage.
        """
        if checkpoint["model"] != self._config.model or checkpoint["version"] <= self._newest:
            return False
        if checkpoint["event_id"] == self._publisher.event_id:
            return False  # its own, before the acknowledgement
        name = f"{checkpoint['model']}@{checkpoint['version']}"
        if checkpoint["parent_version"] is None:
            log.info("%s begins a new lineage: training ends at version %d", name, self._base["version"])
            return True
        raise Fatal(f"another learner published {name}: run only one learner per model")

    def _update(self, groups: list[list[Attempt]]) -> None:
        version, number = self._version, self._next_update()
        attempts = [attempt for group in groups for attempt in group]
        with self._reporter.time("train"):
            figures = self._trainer.update(number, groups, version)
        self._updates.append(
            new_update_input(
                update=number,
                partitions=[attempt.position[0] for attempt in attempts],
                offsets=[attempt.position[1] for attempt in attempts],
            )
        )
        self._update_figures.append(figures)
        self._update_specs.update(attempt.reward_spec for attempt in attempts)
        self._reporter.report_update(number, version, groups, figures, self._trainer.lags)
        self._check_gap(number, version, figures, len(attempts))

    def _check_gap(self, number: int, version: int, figures: dict[str, float], trajectories: int) -> None:
        """Warn if the engine's log-probabilities of this version's own tokens are far from the learner's."""
        if warning := gap_warning(figures, version, self._config.max_mu_gap):
            metrics.MU_GAPS.inc()
            log.warning("update %d: %s", number, warning)
        if alarm := self._gap_alarm.decide(figures, version, trajectories, now_us()):
            self._reporter.report_alarm(alarm)

    def _start_version(self) -> None:
        """Copy the state and publish it from a thread; block until the version before is durable."""
        self._await_published()
        with self._reporter.time("publish"):
            flush_producer(self._producer, self._stop)
            self._publisher.start(
                self._trainer.snapshot(),
                # Decisions must be durable before the resume offsets pass their records.
                before=self._reporter.flush,
                inputs=self._updates,
                resume_offsets=self._buffer.resume_offsets(),
                metrics=summary_of(self._update_figures),
            )
        self._reporter.begin_publication()
        self._version += 1
        self._updates_before += len(self._updates)
        self._updates, self._update_figures, self._update_specs = [], [], set()
        self._buffer.advance(self._version)
        self._count()

    def _await_published(self) -> None:
        """Block until no version is in publication.

        Raises:
            Fatal: a stop was requested, and it was not durable within `learner.stop_wait_s`.
        """
        ends_s = None
        while self._publisher.is_busy:
            if self._stop and ends_s is None:
                ends_s = time.monotonic() + self._config.stop_wait_s
            if ends_s is not None and time.monotonic() > ends_s:
                raise Fatal(
                    f"stopped before {self._config.model}@{self._version} was known to be durable: a restart continues "
                    "from the newest published version and repeats the updates after it; raise learner.stop_wait_s"
                )
            with self._reporter.time("publish"):
                self._take_published(_JOIN_S)

    def _take_published(self, wait_s: float = 0.0) -> None:
        """Go on from the version in publication if it is durable."""
        published = self._publisher.take(wait_s)
        if published is None:
            return
        self._base, self._folder = published.checkpoint, published.folder
        self._newest = self._base["version"]
        self._trainer.policy.take_base_from(self._folder)
        self._retention.prune_after(self._base)
        self._reporter.report_published(self._base["version"])
        figures = self._base["metrics"]
        metrics.VERSION.set(self._base["version"])
        metrics.PUBLICATION.observe(published.seconds)
        log.info(
            "published %s in %.1f s: reward %.3f, loss %.4f, staleness at most %.0f, clip share %.3f, "
            "effective share %.2f",
            name_of(self._base), published.seconds, figures["reward"], figures["loss"], figures["staleness_max"],
            figures["clip_share"], figures["effective_share"],
        )  # fmt: skip

    def _send_dead_letter(self, letter: DeadLetter) -> None:
        """Queue a dead letter; `_start_version` makes it durable before the resume offsets pass the record."""
        log.warning("dead letter, offset %d: %s: %s", letter["offset"], letter["error"], letter["reason"])
        metrics.DEAD_LETTERS.labels(letter["error"]).inc()
        send(self._producer, DEAD_LETTERS, (letter["key"] or b"").decode(), letter, self._stop)
        self._producer.poll()

    def _count(self) -> None:
        self._reporter.report_dropped(self._buffer.take_drops(), self._version)
        metrics.DUPLICATES.inc(self._buffer.dropped.pop("duplicate", 0))
        metrics.READY.set(self._buffer.ready())
        metrics.WAITING.set(self._buffer.waiting())

    def _check_log(self, trained: Iterable[LogPosition]) -> None:
        """Check that the log contains the records that the lineage trained on.

        Raises:
            Fatal: it does not, so the configured cluster is another one.
        """
        with EventConsumer(self._settings.kafka, self._codec) as consumer:
            ends = consumer.end_offsets(LABELED_TRAJECTORIES)
        missing = [position for position in trained if position[1] >= ends.get(position[0], 0)]
        if missing:
            name, (partition, offset) = f"{self._base['model']}@{self._base['version']}", missing[0]
            raise Fatal(
                f"{name} was trained on {LABELED_TRAJECTORIES} partition {partition} offset {offset}, which this "
                "cluster does not have: check STEPSTREAM_KAFKA_BOOTSTRAP and whether the topic was recreated"
            )

"""What one lineage tells of itself while it trains: decisions and updates as events, and the same as metrics."""

import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from stepstream.learner import metrics
from stepstream.learner.data.attempt import Attempt
from stepstream.learner.data.drop_reasons import Fate
from stepstream.learner.decisions import DECISIONS, UPDATES, Decider, Use
from stepstream.learner.losses import Bucket
from stepstream.learner.outbox import Outbox
from stepstream.topics.events import new_lag_figures

Groups = Sequence[Sequence[Attempt]]


class Journal:
    """Nothing here blocks but `settle`."""

    def __init__(self, decider: Decider, outbox: Outbox) -> None:
        self._decider, self._outbox = decider, outbox
        self._dropped: Counter[str] = Counter()
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._unpublished: list[tuple[int, int, Groups]] = []

    @contextmanager
    def time(self, activity: str) -> Iterator[None]:
        """Counts the seconds of the block for the activity, in the metrics and in the next update's event."""
        began = time.monotonic()
        try:
            yield
        finally:
            seconds = time.monotonic() - began
            self._seconds[activity] += seconds
            metrics.SECONDS.labels(activity).inc(seconds)

    def let_go(self, fates: Iterable[Fate], version: int) -> None:
        """Attempts that a learner which trains from `version` will not train on."""
        fates = list(fates)
        self._dropped.update(fate.reason for fate in fates)
        for fate in fates:
            metrics.DROPPED.labels(fate.reason).inc()
        self._outbox.put(
            (DECISIONS, fate.attempt.trajectory_id, self._decider.dropped(fate, version)) for fate in fates
        )

    def updated(
        self, number: int, version: int, groups: Groups, figures: dict[str, float], lags: Sequence[Bucket]
    ) -> None:
        """An update was done, from `version`; its version is not published yet."""
        self._unpublished.append((number, version, groups))
        buckets = [
            new_lag_figures(
                least=lag.least,
                most=lag.most,
                tokens=lag.tokens,
                effective_share=lag.effective_share,
                clip_share=lag.shares[0],
                rejected_share=lag.shares[1],
                kl=lag.kl,
            )
            for lag in lags
            if lag.tokens
        ]
        event = self._decider.update(number, version, groups, figures, buckets, self._dropped, self._seconds)
        self._outbox.put([(UPDATES, event["model"], event)])
        self._dropped.clear()
        self._seconds.clear()
        _show(version, groups, figures, lags)

    def published(self, version: int) -> None:
        """The updates that were told are part of `version`, which is durable."""
        for number, before, groups in self._unpublished:
            use = Use(number, before, version)
            for group in groups:
                self.trained(group, [use])
        self._unpublished = []

    def trained(self, attempts: Iterable[Attempt], uses: Sequence[Use]) -> None:
        """Attempts are part of published versions; telling it again after a crash says nothing new."""
        self._outbox.put(
            (DECISIONS, attempt.trajectory_id, self._decider.trained(attempt, use))
            for attempt in attempts
            for use in uses
        )

    def settle(self) -> None:
        """Blocks until everything that was told is durable.

        Raises:
            Fatal: asked to stop before it was.
        """
        self._outbox.settle()


def _show(version: int, groups: Groups, figures: dict[str, float], lags: Sequence[Bucket]) -> None:
    for attempt in (attempt for group in groups for attempt in group):
        if (staleness := attempt.staleness(version)) is not None:
            metrics.STALENESS.observe(max(0, staleness))
    for name, value in figures.items():
        metrics.FIGURE.labels(name).set(value)
    for lag in lags:
        within = "more" if lag.most is None else str(lag.most)
        metrics.LAG_TOKENS.labels(within).inc(lag.tokens)
        metrics.LAG_EFFECTIVE.labels(within).set(lag.effective_share)
    metrics.UPDATES.inc()
    metrics.TOKENS.inc(figures["tokens"])

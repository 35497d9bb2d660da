"""Check the reporter's metrics and events."""

from typing import Any

import pytest
from labelled_records import attempt, group_of
from prometheus_client import REGISTRY

from stepstream.learner.decisions import Decider
from stepstream.learner.losses import Bucket
from stepstream.learner.reporter import Reporter
from stepstream.topics.catalogue import LEARNER_UPDATES

FIGURES = {
    "loss": 0.25,
    "clip_share": 0.125,
    "rejected_share": 0.5,
    "effective_share": 0.75,
    "kl": 0.01,
    "tokens": 30.0,
}
LAGS = [
    Bucket(0, 0, 20, (0.1, 0.2), 0.9, 0.001),
    Bucket(1, 1, 0, (0.0, 0.0), 0.0, 0.0),
    Bucket(9, None, 10, (0.3, 0.4), 0.6, 0.02),
]


class RecordingSender:
    """A sender that keeps the events."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, str, Any]] = []

    def put(self, events: Any) -> None:
        self.sent += events


def value(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(f"stepstream_learner_{name}", labels) or 0.0


def test_an_update_has_the_same_figures_in_metrics_and_event() -> None:
    sender = RecordingSender()
    reporter = Reporter(Decider("m", 0), sender)  # type: ignore[arg-type]
    counted = [
        ("updates_total", {}, 1),
        ("trained_tokens_total", {}, 30),
        ("tokens_by_staleness_total", {"most": "0"}, 20),
        ("tokens_by_staleness_total", {"most": "more"}, 10),
        ("staleness_versions_count", {}, 2),
        ("staleness_versions_sum", {}, 2 * 3),
        ("staleness_versions_bucket", {"le": "2.0"}, 0),
        ("staleness_versions_bucket", {"le": "3.0"}, 2),
    ]
    before = [value(name, **labels) for name, labels, _ in counted]
    group = [attempt(record) for record in group_of("g", 2, versions=(4, 6))]
    reporter.report_update(8, 7, [group], FIGURES, LAGS)
    after = [value(name, **labels) for name, labels, _ in counted]
    assert [b - a for a, b in zip(before, after, strict=True)] == [more for _, _, more in counted]
    for name, figure in FIGURES.items():
        assert value("update", figure=name) == figure
    assert value("effective_share_by_staleness", most="0") == 0.9
    assert value("effective_share_by_staleness", most="more") == 0.6

    ((topic, key, event),) = sender.sent
    assert (topic, key, event["update"], event["figures"]) == (LEARNER_UPDATES, "m", 8, FIGURES)
    lags = [(lag["most"], lag["tokens"], lag["clip_share"], lag["rejected_share"], lag["kl"]) for lag in event["lags"]]
    assert lags == [(0, 20, 0.1, 0.2, 0.001), (None, 10, 0.3, 0.4, 0.02)]  # a range without tokens is left out


def test_an_update_s_event_has_the_seconds_since_the_previous_one() -> None:
    sender = RecordingSender()
    reporter = Reporter(Decider("m", 0), sender)  # type: ignore[arg-type]
    before = value("seconds_total", activity="read")
    with reporter.time("train"):
        pass
    with pytest.raises(KeyError), reporter.time("read"):
        raise KeyError
    group = [attempt(record) for record in group_of("g", 2)]
    for number in (1, 2):
        reporter.report_update(number, 0, [group], FIGURES, LAGS)
    first, second = (event["seconds"] for _, _, event in sender.sent)
    assert set(first) == {"train", "read"}
    assert not second
    assert value("seconds_total", activity="read") - before == pytest.approx(first["read"])

"""What a lineage tells of itself: as metrics, and as events that say the same."""

from typing import Any

import pytest
from labelled_records import attempt, group_of
from prometheus_client import REGISTRY

from stepstream.learner.decisions import UPDATES, Decider
from stepstream.learner.losses import Bucket
from stepstream.learner.reporter import Reporter

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


class Kept:
    """An outbox that keeps what it is given."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, str, Any]] = []

    def put(self, events: Any) -> None:
        self.sent += events


def value(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(f"stepstream_learner_{name}", labels) or 0.0


def test_an_update_is_shown_as_it_is_told() -> None:
    outbox = Kept()
    journal = Reporter(Decider("m", 0), outbox)  # type: ignore[arg-type]
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
    journal.updated(8, 7, [group], FIGURES, LAGS)
    after = [value(name, **labels) for name, labels, _ in counted]
    assert [b - a for a, b in zip(before, after, strict=True)] == [more for _, _, more in counted]
    for name, figure in FIGURES.items():
        assert value("update", figure=name) == figure
    assert value("effective_share_by_staleness", most="0") == 0.9
    assert value("effective_share_by_staleness", most="more") == 0.6

    ((topic, key, event),) = outbox.sent
    assert (topic, key, event["update"], event["figures"]) == (UPDATES, "m", 8, FIGURES)
    told = [(lag["most"], lag["tokens"], lag["clip_share"], lag["rejected_share"], lag["kl"]) for lag in event["lags"]]
    assert told == [(0, 20, 0.1, 0.2, 0.001), (None, 10, 0.3, 0.4, 0.02)]  # nothing is told of a range without tokens


def test_time_is_told_since_the_update_before() -> None:
    outbox = Kept()
    journal = Reporter(Decider("m", 0), outbox)  # type: ignore[arg-type]
    before = value("seconds_total", activity="read")
    with journal.time("train"):
        pass
    with pytest.raises(KeyError), journal.time("read"):
        raise KeyError
    group = [attempt(record) for record in group_of("g", 2)]
    for number in (1, 2):
        journal.updated(number, 0, [group], FIGURES, LAGS)
    first, second = (event["seconds"] for _, _, event in outbox.sent)
    assert set(first) == {"train", "read"}
    assert not second
    assert value("seconds_total", activity="read") - before == pytest.approx(first["read"])

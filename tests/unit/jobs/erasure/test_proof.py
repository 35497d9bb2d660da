"""The proof names the rows that are hidden and not removed yet, and the time by which they are."""

from typing import Any

from stepstream.config import Settings, StoreSettings
from stepstream.jobs.erasure.findings import Findings
from stepstream.jobs.erasure.proof import build_proof
from stepstream.jobs.erasure.request import ErasureRequest
from stepstream.topics.events import new_erasure

DAY_US = 86_400_000_000
ROWS = {"steps": 3, "step_contents": 3, "trajectories": 2, "consents": 1}


def remaining(hidden: set[str], hours: int = 24) -> tuple[list[Any], int]:
    """Return what remains, and the time of the proof."""
    decision = new_erasure(event_id="e", occurred_at_us=1, tenant="default", subject="s", requested_by="t")
    settings, request = Settings(store=StoreSettings(rewrite_hours=hours)), ErasureRequest("t", 5, rows=dict(ROWS))
    proof = build_proof(settings, decision, request, Findings(), hidden)
    assert proof["rows_deleted"] == ROWS
    return proof["remaining"], proof["occurred_at_us"]


def test_rows_that_are_hidden_remain_until_the_next_rewriting() -> None:
    [store], now_us = remaining({"steps", "step_contents", "trajectories", "trajectory_times"})
    assert (store["place"], store["records"]) == ("store", 8)
    rewriting_us = (now_us // DAY_US + 1) * DAY_US
    assert rewriting_us < store["until_us"] <= rewriting_us + 2 * 3600 * 1_000_000
    assert "erasures rewrite" in store["reason"]


def test_no_time_is_known_where_only_people_rewrite() -> None:
    [store], _ = remaining({"steps"}, hours=0)
    assert (store["records"], store["until_us"]) == (3, None)


def test_nothing_remains_in_the_store_after_a_rewriting() -> None:
    assert remaining(set())[0] == []
    assert remaining({"trajectory_times"})[0] == [], "rows without a person's name"

"""Test what pages of the console show of an answer, without a browser: their modules are loaded by Node."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import pytest
from required_tools import require_tool

from stepstream.services.console.app import STATIC

RENDER = Path(__file__).parents[2] / "console" / "render_page.mjs"


@pytest.fixture(scope="module")
def modules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the browser's files that Node reads as modules."""
    folder = tmp_path_factory.mktemp("modules") / "static"
    shutil.copytree(STATIC, folder)
    (folder / "package.json").write_text('{"type": "module"}')
    return folder


def render(modules: Path, page: str, data: dict[str, Any], **state: str) -> Any:
    """Return `text` and `charts` of a page that a user of all tenants sees."""
    asked = {"page": page, "state": state, "data": data, "user": {"name": "ada", "role": "admin", "tenant": ""}}
    shown = subprocess.run(
        [require_tool("Node"), RENDER, modules], input=json.dumps(asked), capture_output=True, text=True, check=False
    )
    assert shown.returncode == 0, shown.stderr
    return json.loads(shown.stdout)


def point(version: int, successes: int, outcomes: int) -> dict[str, Any]:
    rate = successes / outcomes
    return {"split": "eval", "version": version, "outcomes": outcomes, "rate": rate, "low": rate / 2, "high": 1.0}


@pytest.mark.parametrize(("state", "since"), [({}, "24h"), ({"since": "7d"}, "7d")])
def test_a_tool_links_to_the_trajectories_that_its_row_counts(modules: Path, state: dict[str, str], since: str) -> None:
    row = {"tool": "get", "calls": 1, "failed": 0, "baseline": 0.0, "errors": [], "p50": 1.0, "p95": 1.0}
    data = {"tools": [row | {"p95_before": 1.0}], "tenants": [], "series": []}
    for more in ({}, {"agent": "helper", "model": "m", "tenant": "acme"}):
        text = render(modules, "tools", data, **more, **state)["text"]
        link = text.split("<a href=/trajectories?")[1].split(">")[0]
        wanted = {"tool": "get", "since": since} | more
        assert dict(parse_qsl(link)) == wanted


RANGED = ("overview", "curves", "fleet", "pipeline", "rewards", "tools", "trajectories")


def test_a_shared_link_holds_the_end_of_the_range(modules: Path) -> None:
    """A range counts back from its end: without the end, the link shows another stretch later."""
    script = f"""
    globalThis.location = {{ pathname: "/curves", search: "?since=7d&model=m" }};
    const router = await import({json.dumps((modules / "router.js").as_uri())});
    const shared = [router.shared(true, 1700000000000), router.shared(false, 5)];
    location.search = "?since=7d&until=9";
    console.log(JSON.stringify([...shared, router.shared(true, 1700000000000), router.href("tools")]));
    """
    command = [require_tool("Node"), "--input-type=module", "-e", script]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout) == [
        "/curves?since=7d&model=m&until=1700000000000",
        "/curves?since=7d&model=m",
        "/curves?since=7d&until=9",
        "/tools?since=7d&until=9",
    ]


@pytest.mark.parametrize("page", RANGED)
def test_a_page_of_a_range_asks_for_its_end_and_shows_it(modules: Path, page: str) -> None:
    lists = "tenants models agents harnesses steps success alarms changes rollouts swaps checkpoints workers versions"
    lists += " learners lag counts letters governance components tools series trajectories"
    data: dict[str, Any] = {name: [] for name in lists.split()}
    data |= {"totals": {"steps": 0, "trajectories": 0}, "staleness": {"mean": None, "max": None}, "bucket_s": 10}
    data |= {"spool": {"files": 0, "bytes": 0}, "next": "", "days": 1, "staleness_bound": 4}
    until = "1700000000000"
    fixed, moving = render(modules, page, data, until=until), render(modules, page, data)
    assert fixed["ranged"] is True
    assert (fixed["asked"].get("until"), moving["asked"].get("until") or None) == (until, None)
    assert f"<option value={until} " in fixed["text"]
    assert "2023-11-14 22:13" in fixed["text"]
    assert "name=until" not in moving["text"]


def test_the_overview_counts_the_alarms_beyond_its_rows(modules: Path) -> None:
    data: dict[str, Any] = {name: [] for name in ("tenants", "models", "steps", "success", "changes")}
    data |= {"totals": {"steps": 0, "trajectories": 0}, "staleness": {"mean": None, "max": None}, "staleness_bound": 4}
    rows = [{"state": "raised", "message": f"alarm {number}"} for number in range(2)]
    for alarms, active, heading, rest in (
        (rows, 7, "7 active alarms", "and 5 more"),
        (rows, 2, "2 active alarms", ""),
        (rows[:1], 1, "1 active alarm<", ""),
        ([rows[0] | {"state": "cleared"}], 0, "", ""),
    ):
        text = render(modules, "overview", data | {"alarms": alarms, "active_alarms": active})["text"]
        assert ("active alarm" in text) == bool(heading)
        assert heading in text
        assert (" more</a>" in text) == bool(rest)
        assert rest in text


def test_an_alarm_links_to_what_it_is_about(modules: Path) -> None:
    alarm: dict[str, Any] = {"state": "raised", "rising": "length", "falling": "", "rising_before": 0.0}
    alarm |= {"rising_after": 1.0, "trajectories_before": 1, "trajectories_after": 1, "message": "m", "raised_at": 0}
    about = {"tenant": "acme", "agent": "a", "model": "m", "environment": "shop", "split": "train"}
    nothing: dict[str, Any] = {"components": [], "tenants": [], "bucket_s": 10}
    for row, wanted in (
        (about | {"since_version": 3}, about | {"version": "3"}),
        (dict.fromkeys(about, "") | {"model": "m", "since_version": None}, {"model": "m"}),
    ):
        text = render(modules, "rewards", nothing | {"alarms": [alarm | row]})["text"]
        assert dict(parse_qsl(text.split("<a href=/trajectories?")[1].split(">")[0])) == wanted


def test_a_filter_that_a_link_brings_is_shown(modules: Path) -> None:
    data: dict[str, Any] = {"trajectories": [], "next": "", "days": 90}
    assert "name=environment" not in render(modules, "trajectories", data)["text"]
    conditions = {"model": "m", "environment": "shop", "split": "train", "task": "t", "harness": "h"}
    text = render(modules, "trajectories", data, **conditions)["text"]
    for name, value in conditions.items():
        assert f"name={name} .value={value} " in text, name


def test_a_held_time_out_is_shown_as_one(modules: Path) -> None:
    row = {"trajectory_id": "t", "tenant": "default", "agent": "a", "reasons": ["strange"], "by": "", "ended_at": 0}
    of: dict[str, Any] = {"consents": [], "consent_counts": [], "erasures": []}
    for fields, outcome in (
        ({"success": None, "end": "truncated", "pending": []}, "timed out"),
        ({"success": None, "end": "truncated", "pending": ["judge"]}, "none yet"),
        ({"success": None, "end": "open", "pending": []}, "none yet"),
        ({"success": True, "end": "truncated", "pending": []}, "succeeded"),
    ):
        text = render(modules, "people", of | {"quarantine": [row | fields]})["text"]
        found = [one for one in ("timed out", "none yet", "succeeded", "failed") if f">{one}<" in text]
        assert found == [outcome], fields


def test_a_branch_and_the_colours_of_tokens_are_shown(modules: Path) -> None:
    step: dict[str, Any] = {"model": "m", "version_min": 1, "version_max": 2, "response_tokens": 3, "cost": None}
    step |= {"duration_ms": None, "finish_reason": "", "occurred_ms": 0, "error": "", "trainable": True, "reward": None}
    step |= {"messages": [], "response": {"content": "x", "tool_calls": []}, "shared_messages": 2, "fidelity": "token"}
    steps = [step | {"step_index": index, "shared_step": shared} for index, shared in ((1, -1), (2, 0))]
    tokens = [
        {"id": 1, "logprob": -0.01, "version": 1, "masked": False},
        {"id": 2, "logprob": -9.0, "version": 2, "masked": False},
        {"id": 3, "logprob": None, "version": 2, "masked": True},
    ]
    data: dict[str, Any] = {"tenant": "t", "trajectory_id": "x", "label": None, "steps": steps, "more": False}
    data |= {"tree": {"nodes": [], "cut": False}, "group": [], "feedback": []}
    data |= {"fetched": {"whole": {}, "tokens": {"2": {"tokens": tokens}}, "status": None}}
    for colour, classes in (
        ("logprob", ["lp-4", "lp-0", "lp-none masked"]),
        ("version", ["tv-0", "tv-1", "tv-1 masked"]),
    ):
        text = render(modules, "trajectory", data, tenant="t", id="x", colour=colour)["text"]
        before, branch = text.split("Step 2</h3>")
        assert "continues 2 messages of the step before" in before
        assert re.search(r'continues 2 messages of step 0 <span class="badge">branch</span>', branch)
        assert re.findall(r"<span class=token ([^>]*?)\s+title=", branch) == classes


def test_a_point_of_few_samples_does_not_pass_for_a_fall(modules: Path) -> None:
    success = [point(3, 0, 1), point(2, 16, 20), point(1, 10, 20)]
    lists: Any = {name: [] for name in ("tenants", "models", "agents", "harnesses", "rollouts", "swaps", "checkpoints")}
    rows = [row | {"reward": 0.0, "at": 0, "trajectories": row["outcomes"]} for row in success]
    [[versions, line, low, high, hollow, *_]] = render(modules, "curves", lists | {"success": rows})["charts"]
    assert versions == [1, 2, 3]
    assert (line, hollow) == ([0.5, 0.8, None], [None, None, 0.0])
    assert (low[2], high[2]) == (0.0, 1.0)


def test_the_overview_marks_a_success_of_few_samples(modules: Path) -> None:
    of: Any = {name: [] for name in ("tenants", "models", "alarms", "steps", "changes")}
    of |= {"totals": {"steps": 0, "trajectories": 0}, "staleness": {"mean": None, "max": None}, "staleness_bound": 8}
    for newest, is_marked in ((point(3, 0, 1), True), (point(3, 0, 20), False)):
        text = render(modules, "overview", of | {"success": [newest]})["text"]
        assert ("too few to compare" in text) is is_marked
        assert ("figure warn" in text) is is_marked

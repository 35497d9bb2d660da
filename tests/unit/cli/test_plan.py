"""A plan scales with its fleet, and each rate is a measured one."""

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepstream.cli import sizing
from stepstream.cli.main import run
from stepstream.cli.sizing import Figure, Fleet, plan_of

MEASURED = Path(__file__).parents[3] / "docs" / "measured"
PAGE = re.compile(r"\b([a-z-]+\.md)\b")


def fleet(agents: int = 100, steps_per_s: float = 50.0, parameters: float = 7e9, **others: float) -> Fleet:
    return Fleet(
        agents=agents,
        steps_per_s=steps_per_s,
        steps_per_trajectory=others.get("length", 4.0),
        step_bytes=1_555,
        days=others.get("days", 30.0),
        keep_days=30.0,
        replication=int(others.get("replication", 3)),
        connections=4_096,
        model_parameters=parameters,
    )


def amounts(plan: list[Figure]) -> dict[str, float]:
    return {figure.part: figure.amount for figure in plan}


def test_each_figure_names_its_source() -> None:
    parts = {figure.part: figure.reason for figure in plan_of(fleet())}
    without_page = {part for part, reason in parts.items() if not PAGE.search(reason)}
    assert without_page == {"gateway spool", "partitions", "inference memory", "learner memory"}


def test_each_rate_is_on_the_page_that_it_names() -> None:
    for name, rate in sizing.RATES.items():
        page = (MEASURED / rate.source.split(",")[0]).read_text()
        assert f"{rate.per_s:,.0f} {rate.unit}" in page, name
        assert f"| {rate.memory_mb} |" in page, name
    gateway, page = plan_of(fleet())[0], (MEASURED / "gateway.md").read_text()
    (commit,) = re.findall(r"gateway\.md, (\w+)", gateway.reason)
    assert "commit" not in page[page.index(f"commit {commit}") + 6 : page.index("2,313")]
    assert page.index(f"commit {commit}") < page.index("2,313")
    assert "52,371" in (MEASURED / "ingest.md").read_text()
    assert "| 1.31 |" in (MEASURED / "label-length.md").read_text()
    disk = (MEASURED / "disk.md").read_text()
    (figures,) = (json.loads(line) for line in disk.splitlines() if line.startswith("{"))
    assert figures["step_bytes"] == sizing.STEP_BYTES
    assert round(figures["kafka_bytes_a_step"] / sizing.STEP_BYTES, 2) == sizing.KAFKA_BYTES
    assert figures["clickhouse_bytes_a_step"] == pytest.approx(sizing.CLICKHOUSE_BYTES, abs=0.5)


def test_a_known_fleet_has_known_figures() -> None:
    figures = amounts(plan_of(fleet(agents=10_000, steps_per_s=10_000.0)))
    assert figures["gateway"] == 9  # 20,000 over 2,313
    assert figures["govern"] == 4  # 20,000 over 6,392
    assert figures["store-writer"] == 27  # 2 × (20,000 + 10,000) over 2,226
    assert figures["partitions"] == 64  # a power of two, twice the workers
    assert figures["clickhouse disk"] == pytest.approx(10_000 * 86_400 * 30 * 219 / 1e9, rel=0.01)
    assert figures["learner memory"] == 112


def test_a_small_fleet_needs_one_of_each() -> None:
    figures = amounts(plan_of(fleet(agents=5, steps_per_s=0.5, parameters=0, replication=1)))
    assert {figures[name] for name in ("gateway", "broker", *sizing.RATES)} == {1}
    assert figures["partitions"] == 8
    assert "learner memory" not in figures


@given(steps=st.floats(0.01, 1e5), factor=st.floats(1, 100), agents=st.integers(1, 10**6))
def test_more_steps_never_need_less(steps: float, factor: float, agents: int) -> None:
    fewer, more = plan_of(fleet(agents, steps)), plan_of(fleet(agents, steps * factor))
    in_all = {"partitions", "gateway", "broker", "label state", "clickhouse disk", *sizing.RATES}
    for small, large in zip(fewer, more, strict=True):
        assert small.amount > 0
        if small.part in in_all:
            assert large.amount >= small.amount, small.part


def test_the_command_prints_lines_or_objects(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", "--agents", "100", "--steps-per-second", "50"]
    assert run(words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert run([*words, "--json"]) == 0
    objects = json.loads(capsys.readouterr().out)
    assert [line.split()[0] for line in lines] == [entry["part"].split()[0] for entry in objects]
    assert {"part", "amount", "unit", "reason"} == set(objects[0])
    assert run(["plan", "--agents", "0", "--steps-per-second", "50"]) == 2

"""Test `stepstream demo-model`: its processes, the tracks of its worker, the faults that it reports, its early end."""

import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from stack_fixtures import with_settings

from stepstream.cli.demo_model import SUMMARY, faults, slowness
from stepstream.config import Settings
from stepstream.demo import model_run
from stepstream.demo.configuration import demo_settings
from stepstream.demo.model_run import ModelDemo, process_names
from stepstream.embedded.addresses import resolve_addresses
from stepstream.embedded.errors import StackError
from stepstream.embedded.processes import stack_parts

GOOD: dict[str, Any] = {
    "success_before": 0.2,
    "success_after": 0.9,
    "swaps": 8,
    "failed_requests": 0,
    "prefix_kept": 1.0,
    "continued_steps": 40,
    "max_mu_gap": 1e-5,
    "mu_tokens": 900,
    "minutes": 8.0,
    "same_tokens_after_restart": True,
}


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Settings of a run whose agent runs until it is stopped."""
    script = tmp_path / "agent.py"
    script.write_text("import signal\nsignal.pause()\n")
    (tmp_path / "logs").mkdir()
    return with_settings(demo_settings("demo-model"), demo={"agent": script}, paths={"data": tmp_path})


def test_one_worker_serves_adapters_on_both_tracks() -> None:
    settings = resolve_addresses(demo_settings("demo-model"))
    workers = [part.name for part in stack_parts(settings) if part.name.startswith("worker-")]
    assert workers == ["worker-0"]
    assert settings.inference.tracks == ["stable", "canary"]
    assert settings.learner.version_format == "lora"
    assert settings.learner.lora_rank == settings.inference.lora_rank
    assert "fleet" not in process_names(settings)
    assert {"learner", "gateway", "worker-0"} <= set(process_names(settings))


def test_good_figures_have_no_fault() -> None:
    assert faults(GOOD, 0.8, 3) == []
    assert set(SUMMARY) <= set(GOOD)


def test_each_figure_out_of_its_range_is_a_fault() -> None:
    bad = {
        "success_before": 0.4,
        "success_after": 0.7,
        "swaps": 2,
        "failed_requests": 1,
        "prefix_kept": 0.9,
        "continued_steps": 0,
        "max_mu_gap": 0.1,
        "mu_tokens": 0,
        "same_tokens_after_restart": False,
    }
    for name, value in bad.items():
        assert len(faults(GOOD | {name: value}, 0.8, 3)) == 1, name
    assert len(faults(GOOD | {"max_mu_gap": float("nan")}, 0.8, 3)) == 1


def test_a_long_run_is_reported_and_no_fault() -> None:
    assert slowness(GOOD) == ""
    assert slowness(GOOD | {"minutes": 12.5}) == "the run took 12.5 minutes, above the target of 10"
    assert faults(GOOD | {"minutes": 12.5}, 0.8, 3) == []


@pytest.mark.parametrize("fault", [StackError("refused"), KeyboardInterrupt()], ids=["fault", "interrupt"])
@pytest.mark.parametrize("phase", ["_evaluate", "_wait_for_success"])
def test_a_run_that_ends_early_leaves_no_agent(
    phase: str, fault: BaseException, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    agents: list[subprocess.Popen[bytes] | None] = []

    def fail(demo: ModelDemo, *_: Any) -> None:
        agents.append(demo._agent._process)
        raise fault

    monkeypatch.setattr(model_run, "RunStats", lambda *_: None)
    for step in ("_labels_end", "_models", "_write_bad_version", "_evaluate"):
        monkeypatch.setattr(ModelDemo, step, lambda *_: None)
    monkeypatch.setattr(ModelDemo, phase, fail)
    stack, view = SimpleNamespace(settings=settings, pids=dict), SimpleNamespace(print_line=lambda _: None)
    with pytest.raises(type(fault)):
        ModelDemo(cast(Any, stack), cast(Any, view), 0).run()
    [agent] = agents
    assert agent is not None
    try:
        assert agent.returncode is not None, "the agent's process still runs"
    finally:
        agent.kill()

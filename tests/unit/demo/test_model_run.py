"""Test the profile of `stepstream demo-model`: its processes, its workers' tracks, and the faults that it reports."""

from typing import Any

from stepstream.cli.demo_model import SUMMARY, faults
from stepstream.demo.configuration import demo_settings
from stepstream.demo.model_run import CANARY, without_fleet
from stepstream.embedded.addresses import resolve_addresses
from stepstream.embedded.processes import Process, stack_parts

GOOD: dict[str, Any] = {
    "success_before": 0.2,
    "success_after": 0.9,
    "swaps": 8,
    "failed_requests": 0,
    "prefix_kept": 1.0,
    "max_mu_gap": 1e-5,
    "minutes": 8.0,
    "same_tokens_after_restart": True,
}


def test_the_last_worker_serves_the_canary() -> None:
    settings = resolve_addresses(demo_settings("demo_model.toml"))
    tracks = {
        part.name: part.environment.get("STEPSTREAM_INFERENCE_TRACKS")
        for part in stack_parts(settings)
        if isinstance(part, Process) and part.name.startswith("worker-")
    }
    assert tracks == {"worker-0": None, CANARY: "canary"}
    assert settings.inference.tracks == ["stable"]
    assert "fleet" not in without_fleet(settings)
    assert {"learner", "gateway", CANARY} <= set(without_fleet(settings))


def test_good_figures_have_no_fault() -> None:
    assert faults(GOOD, 0.8, 3) == []
    assert set(SUMMARY) <= set(GOOD)


def test_each_figure_out_of_its_range_is_a_fault() -> None:
    bad = {
        "success_after": 0.7,
        "swaps": 2,
        "failed_requests": 1,
        "prefix_kept": 0.9,
        "max_mu_gap": 0.1,
        "same_tokens_after_restart": False,
    }
    for name, value in bad.items():
        assert len(faults(GOOD | {name: value}, 0.8, 3)) == 1, name

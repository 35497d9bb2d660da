"""Test the profile of `stepstream demo-model`: its processes, its worker's tracks, and the faults that it reports."""

from typing import Any

from stepstream.cli.demo_model import SUMMARY, faults, slowness
from stepstream.demo.configuration import demo_settings
from stepstream.demo.model_run import process_names
from stepstream.embedded.addresses import resolve_addresses
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

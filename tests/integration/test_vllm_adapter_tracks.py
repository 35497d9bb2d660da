"""Test a worker process on vLLM that follows the log with adapters: both tracks on one base, rollback, restart."""

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from command_line import stepstream
from engine_models import TransformersModel, adapters
from inference_workers import ASK, VersionPublisher, WorkerClient
from peft import PeftModel
from required_tools import require_package
from safetensors.torch import load_file, save_file
from service_process import ServiceProcess
from stack_fixtures import with_settings
from transformers import AutoModelForCausalLM
from waiting import wait_until

from stepstream.config import Settings
from stepstream.embedded.ports import free_block

pytestmark = [pytest.mark.vllm, pytest.mark.slow]

MODEL = "adapted"
BASE, FIRST, SECOND, OVERFLOWING, INCOMPLETE = 1, 2, 3, 4, 5


@pytest.fixture
def settings(registry_settings: Settings) -> Settings:
    require_package("vllm")
    port = free_block(1)
    worker = {"model": MODEL, "port": port, "worker_id": f"adapted-{port}", "engine": "vllm", "max_batch": 4}
    limits = {"max_model_len": 512, "kv_cache_bytes": 64 << 20, "lora_rank": 8, "max_adapters": 2}
    return with_settings(
        registry_settings, inference=worker | limits | {"tool_parser": "none", "smoke_prompts": ["q:a"]}
    )


@pytest.fixture
def references(settings: Settings, tmp_path: Path) -> dict[int, TransformersModel]:
    """Publish a base, adapters of it and two versions that fail; return what the sound adapters compute."""
    base, models = tmp_path / f"v{BASE}", {}
    with closing(VersionPublisher(settings, tmp_path, MODEL)) as publisher:
        publisher.publish(publisher.make(BASE, seed=BASE))
        for version in (FIRST, SECOND, OVERFLOWING):
            folder, scale = tmp_path / f"v{version}", 1e30 if version == OVERFLOWING else 1.0
            made = adapters(base, folder / "weights/adapter", seed=version, scale=scale)
            publisher.publish(publisher.describe(version, folder, BASE))
            merged = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), made)
            models[version] = TransformersModel.of(merged.merge_and_unload())
        publisher.make(INCOMPLETE, seed=INCOMPLETE)
        file = tmp_path / f"v{INCOMPLETE}/model.safetensors"
        tensors = load_file(file)
        del tensors["model.layers.1.mlp.down_proj.weight"]
        save_file(tensors, file, {"format": "pt"})
        publisher.publish(publisher.describe(INCOMPLETE, file.parent))
    return models


def test_both_tracks_are_adapters_of_one_base_and_survive_what_fails(
    settings: Settings, references: dict[int, TransformersModel], request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """One test, since each start of vLLM takes half a minute."""
    client = WorkerClient(settings)
    worker = ServiceProcess("stepstream.services.inference", settings, lambda: True, tmp_path / "worker.log")

    def decide(*words: str, status: int = 0) -> dict[str, Any]:
        result = stepstream(settings, "models", *words, "--json")
        assert result.status == status, result.stderr
        facts: dict[str, Any] = json.loads(result.stdout)
        return facts

    def wait_for(**tracks: int) -> None:
        """Wait until the worker's tracks have these versions; its answers are then those of their adapters."""
        wait_until(lambda: client.tracks() == tracks, lambda: f"{client.tracks()}:\n{worker.log_text}")
        for track in ("stable", "canary"):
            version = tracks.get(track, tracks["stable"])
            status, reply = client.chat(track)
            assert (status, reply["model"]) == (200, MODEL)
            choice = reply["choices"][0]
            assert choice["weight_versions"] == [{"version": version, "start": 0, "end": len(choice["token_ids"])}]
            assert choice["token_ids"] == references[version].greedy(reply["prompt_token_ids"], ASK["max_tokens"])

    def wait_for_reason(text: str) -> None:
        wait_until(lambda: text in str(decide("status", MODEL, status=1)["workers"]), lambda: worker.log_text)

    decide("promote", f"{MODEL}@{FIRST}")
    decide("canary", f"{MODEL}@{SECOND}", "--share", "0.5")
    worker.launch()
    request.addfinalizer(worker.kill)
    wait_for(stable=FIRST, canary=SECOND)
    decide("promote", f"{MODEL}@{SECOND}")
    wait_for(stable=SECOND)
    decide("rollback", MODEL)
    wait_for(stable=FIRST)

    # Adapters whose products overflow have finite weights; the smoke prompt finds them.
    decide("promote", f"{MODEL}@{OVERFLOWING}")
    wait_for_reason("smoke prompt 'q:a' is not finite")
    wait_for(stable=FIRST)
    decide("rollback", MODEL)

    # vLLM cannot start with the stable version, so a restarted worker serves the one before, and the canary.
    decide("canary", f"{MODEL}@{SECOND}", "--share", "0.5")
    decide("promote", f"{MODEL}@{INCOMPLETE}")
    wait_for_reason("down_proj.weight has shape None")
    wait_for(stable=FIRST, canary=SECOND)
    worker.kill()
    worker.launch()
    wait_for(stable=FIRST, canary=SECOND)
    wait_for_reason("vLLM cannot start with")
    [status] = decide("status", MODEL, status=1)["workers"]
    assert status["state"] == "refused"
    assert f"; {MODEL}@{FIRST} is served" in status["reason"]
    decide("rollback", MODEL, "--to", str(FIRST))
    wait_for(stable=FIRST)
    assert worker.stop() == 0

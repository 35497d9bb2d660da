"""Test when the vLLM engine starts vLLM again: with a fake process in the place of vLLM's."""

import asyncio
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import orjson
import pytest
import torch
from aiohttp import ServerDisconnectedError
from safetensors.torch import save_file

from stepstream.config import InferenceSettings
from stepstream.services.inference import vllm_engine
from stepstream.services.inference.engine import CheckpointRefusedError, EngineError
from stepstream.services.inference.vllm_engine import VllmEngine

CANNOT_START, CANNOT_SERVE, NEVER_READY = "cannot start", "infinite logits", "never ready"
ENDS_AT_PROMPT = "ends at the first prompt"


class FakeProcess:
    """Starts as the name of the version's folder says."""

    made: ClassVar[list["FakeProcess"]] = []

    def __init__(self, _inference: InferenceSettings) -> None:
        self.folder: Path | None = None
        self.is_closed = False
        self.ended: asyncio.Future[EngineError] = asyncio.get_running_loop().create_future()
        self.http = SimpleNamespace(post=self._post)
        self.made.append(self)

    @property
    def is_started(self) -> bool:
        return self.folder is not None

    async def start(self, folder: Path, version: int) -> None:
        self.folder = folder
        if folder.name == CANNOT_START:
            self.ended.set_result(EngineError("vLLM ended with status 1"))
            raise self.ended.result()
        if folder.name == NEVER_READY:
            raise EngineError("vLLM was not ready after 600 s")

    async def close(self) -> None:
        self.is_closed = True

    @asynccontextmanager
    async def _post(self, address: str, data: bytes, **_: Any) -> Any:
        assert (address, orjson.loads(data)) == ("http://vllm/stepstream/smoke", {"prompts": ["q"], "adapters": None})
        assert self.folder is not None
        if self.folder.name == ENDS_AT_PROMPT:
            raise ServerDisconnectedError
        is_finite = self.folder.name != CANNOT_SERVE

        async def read() -> bytes:
            return b"null" if is_finite else orjson.dumps({"error": {"message": "not finite after 'q'"}})

        yield SimpleNamespace(status=200 if is_finite else 409, read=read)


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> list[FakeProcess]:
    monkeypatch.setattr(vllm_engine, "VllmProcess", FakeProcess)
    monkeypatch.setattr(FakeProcess, "made", [])
    return FakeProcess.made


def version(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    save_file({"x": torch.ones(len(folder.name))}, folder / "model.safetensors")  # other shapes in each folder
    return folder


@pytest.mark.parametrize("fault", [CANNOT_START, ENDS_AT_PROMPT, CANNOT_SERVE])
async def test_a_version_that_vllm_cannot_start_with_is_refused_and_the_next_one_served(
    fault: str, tmp_path: Path, processes: list[FakeProcess]
) -> None:
    """A restarted worker then serves what served before the faulty version."""
    engine = VllmEngine(InferenceSettings(engine="vllm", model="m", smoke_prompts=["q"]))
    with pytest.raises(
        CheckpointRefusedError, match=r"ended with status 1|smoke prompts: Server dis|not finite after 'q'"
    ):
        await engine.load(version(tmp_path / fault), 2)
    assert (engine.version, engine.failed.done()) == (None, False)
    await engine.load(version(tmp_path / "sound"), 1)
    assert (engine.version, [one.is_closed for one in processes]) == (1, [True, False])
    processes[1].ended.set_result(EngineError("vLLM ended with status 9"))
    assert "status 9" in str(await engine.failed)


async def test_two_starts_in_a_row_that_fail_or_one_that_never_ends_fail_the_engine(
    tmp_path: Path, processes: list[FakeProcess]
) -> None:
    """Then the cause is hardly the version, and a supervisor should see the worker end."""
    settings = InferenceSettings(engine="vllm", model="m")
    engine = VllmEngine(settings)
    with pytest.raises(CheckpointRefusedError, match="vLLM cannot start with"):
        await engine.load(version(tmp_path / CANNOT_START), 2)
    with pytest.raises(EngineError, match="ended with status 1"):
        await engine.load(version(tmp_path / CANNOT_START), 1)
    assert "status 1" in str(await engine.failed)
    late = VllmEngine(settings)
    with pytest.raises(EngineError, match="not ready"):
        await late.load(version(tmp_path / NEVER_READY), 1)
    assert "not ready" in str(await late.failed)
    assert len(processes) == 3


@pytest.mark.parametrize("name", ["tokenizer.json", "vocab.json", "added_tokens.json", "named/tool_use.jinja"])
@pytest.mark.usefixtures("processes")
async def test_a_version_with_another_tokenizer_or_template_is_not_swapped_in(name: str, tmp_path: Path) -> None:
    """vLLM reads these files once, so that it would go on with those that it started with."""
    name = name.replace("named", "additional_chat_templates")
    engine = VllmEngine(InferenceSettings(engine="vllm", model="m"))
    for number in (1, 2):
        file = version(tmp_path / str(number)) / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(str(number))
    await engine.load(tmp_path / "1", 1)
    with pytest.raises(CheckpointRefusedError, match="its tokenizer or template differs"):
        await engine.load(tmp_path / "2", 2)
    assert engine.version == 1

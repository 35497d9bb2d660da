"""Test `POST /v1/score` with the torch engine: equal to transformers, beside generation and after a swap."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest
import pytest_asyncio
import torch
from engine_models import TransformersModel
from labelled_records import tiny_model
from safetensors.torch import load_file, save_file
from scripted_judge import serve_replies

from stepstream.config import Settings
from stepstream.jobs.verifiers.base import Case, NoVerdict, Turn, Unavailable, UnverifiableCase
from stepstream.jobs.verifiers.options import InvalidOptions, VerifierContext
from stepstream.jobs.verifiers.process_reward import make
from stepstream.services.inference.app import App
from stepstream.services.inference.chat_tokenizer import ChatTokenizer
from stepstream.services.inference.engine import SamplingParams
from stepstream.services.inference.tool_parsers import CallLine
from stepstream.services.inference.torch_engine import TorchEngine
from stepstream.services.inference.worker import Worker
from stepstream.topics.events import new_message

REQUEST: dict[str, Any] = {"model": "prm", "prompts": [{"messages": [{"role": "user", "content": "q:a"}]}]}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A language model, and one with a value head."""
    plain, valued = (tiny_model(tmp_path_factory.mktemp("model") / "m", seed) for seed in (0, 1))
    file = valued / "model.safetensors"
    tensors = load_file(file)
    width = tensors["model.norm.weight"].shape[0]
    generator = torch.Generator().manual_seed(0)
    save_file(tensors | {"score.weight": torch.randn(1, width, generator=generator)}, file, {"format": "pt"})
    return [plain, valued]


class Served:
    """The application over a running engine."""

    def __init__(self, engine: TorchEngine, folders: list[Path]) -> None:
        self.engine, self.folders = engine, folders
        self.worker = Worker("prm", engine, 512)
        self.app = App(self.worker, CallLine())

    async def load(self, which: int, version: int) -> ChatTokenizer:
        await self.engine.load(self.folders[which], version)
        self.worker.tokenizer = ChatTokenizer(self.folders[which])
        return self.worker.tokenizer

    async def ask(self, body: Any) -> tuple[int, dict[str, Any]]:
        """One request."""
        raw = body if isinstance(body, bytes) else orjson.dumps(body)
        sent: list[Any] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": raw}

        async def send(message: Any) -> None:
            sent.append(message)

        await self.app({"type": "http", "method": "POST", "path": "/v1/score"}, receive, send)
        return sent[0]["status"], orjson.loads(b"".join(message.get("body", b"") for message in sent))


@pytest_asyncio.fixture
async def served(folders: list[Path]) -> AsyncIterator[Served]:
    engine = TorchEngine(4, 512, 1)
    yield Served(engine, folders)
    await engine.close()


def by_reference(reference: TransformersModel, prompt: list[int], tokens: tuple[int, int]) -> float:
    good, bad = (reference.logprobs(prompt, [token])[0] for token in tokens)
    return float(torch.tensor(good - bad).sigmoid())


async def test_a_score_is_the_probability_of_one_word_against_the_other(served: Served) -> None:
    tokenizer = await served.load(0, 3)
    talks = [[{"role": "user", "content": "q:" + "a" * length}] for length in range(1, 12)]
    prompts = [tokenizer.prompt_ids(talk, []) for talk in talks]
    tokens = tokenizer.first_token("yes"), tokenizer.first_token("no")
    reference = TransformersModel(served.folders[0])
    expected = [by_reference(reference, prompt, tokens) for prompt in prompts]
    request = {"model": "prm", "prompts": [{"messages": talk} for talk in talks]}
    status, reply = await served.ask(request)
    assert (status, reply["version"], reply["model"]) == (200, 3, "prm")
    assert reply["scores"] == pytest.approx(expected, abs=1e-5)
    ids = {
        "model": "prm",
        "prompts": [{"token_ids": prompt} for prompt in prompts],
        "positive": "no",
        "negative": "yes",
    }
    _, swapped = await served.ask(ids)
    assert swapped["scores"] == pytest.approx([1 - score for score in expected], abs=1e-5)


async def test_a_value_head_reads_the_last_state(served: Served) -> None:
    await served.load(1, 1)
    prompt = [5, 6, 7, 8]
    reference = TransformersModel(served.folders[1])._model
    with torch.no_grad():
        state = reference.model(torch.tensor([prompt])).last_hidden_state[0, -1]
    head = load_file(served.folders[1] / "model.safetensors")["score.weight"][0]
    status, reply = await served.ask({"model": "prm", "head": "scalar", "prompts": [{"token_ids": prompt}]})
    assert status == 200
    assert reply["scores"] == pytest.approx([float((state @ head).sigmoid())], abs=1e-5)
    await served.load(0, 2)
    status, reply = await served.ask({"model": "prm", "head": "scalar", "prompts": [{"token_ids": prompt}]})
    assert (status, reply["error"]["param"]) == (501, "head")


async def test_scores_and_responses_do_not_disturb_each_other(served: Served) -> None:
    await served.load(0, 1)
    params = SamplingParams(max_tokens=40, seed=1)

    async def response() -> list[int]:
        return [token async for chunk in served.engine.generate([5, 6, 7], params) for token in chunk.token_ids]

    alone = await response()
    [score], _ = await served.engine.score([[9, 8, 7]], (5, 6))
    crowd = await asyncio.gather(
        *(response() for _ in range(6)), *(served.engine.score([[9, 8, 7]] * 9, (5, 6)) for _ in range(20))
    )
    assert crowd[:6] == [alone] * 6
    for scores, version in crowd[6:]:
        assert version == 1
        assert scores == pytest.approx([score] * 9, abs=1e-6)


@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({"model": "other"}, 404, "model"),
        ({"prompts": []}, 400, "prompts"),
        ({"prompts": [{}]}, 400, "prompts[0]"),
        ({"prompts": [{"token_ids": []}]}, 400, "prompts[0]"),
        ({"prompts": [{"token_ids": [1, True]}]}, 400, "prompts[0]"),
        ({"prompts": [{"token_ids": [10**6]}]}, 400, "prompts"),
        ({"prompts": [{"messages": [{"role": "nobody"}]}]}, 400, "messages[0]"),
        ({"head": "mean"}, 400, "head"),
        ({"positive": ""}, 400, "positive"),
        ({"positive": "now", "negative": "no"}, 400, "positive"),
    ],
)
async def test_the_error_names_the_invalid_field(
    served: Served, fields: dict[str, Any], status: int, param: str
) -> None:
    await served.load(0, 1)
    answered, reply = await served.ask(REQUEST | fields)
    assert (answered, reply["error"]["param"]) == (status, param)


async def test_a_worker_without_a_model_and_a_closed_one_answer_503(served: Served) -> None:
    assert (await served.ask(REQUEST))[0] == 503
    assert (await served.ask(b"{"))[0] == 400
    await served.load(0, 1)
    await served.engine.close()
    assert (await served.ask(REQUEST))[0] == 503


# The verifier that requests scores.

TURNS = [
    Turn(0, [new_message(role="user", content="q"), new_message(role="assistant", content="a")]),
    Turn(2, [new_message(role="user", content="q"), new_message(role="assistant", content="b")]),
]
CASE = Case("t", "", "", turns=TURNS)


@contextmanager
def worker(status: int, answer: Any) -> Iterator[tuple[str, list[Any]]]:
    with serve_replies((status, orjson.dumps(answer))) as (url, seen):
        yield url.removesuffix("/v1"), seen


def verifier(url: str, **options: Any) -> Any:
    return make({"model": "prm", "url": url} | options, VerifierContext(Settings()))


def test_the_verifier_returns_a_value_for_each_step() -> None:
    with worker(200, {"scores": [0.25, 0.75], "version": 4}) as (url, seen):
        verdicts = verifier(url, question="good?").verify(CASE)
    assert [(v.step_index, v.value, v.category) for v in verdicts] == [(0, 0.25, "prm@4"), (2, 0.75, "prm@4")]
    [(path, _, body)] = seen
    assert (path, body["head"], body["positive"]) == ("/v1/score", "tokens", "yes")
    assert [[m["content"] for m in prompt["messages"]] for prompt in body["prompts"]] == [
        ["q", "a", "good?"],
        ["q", "b", "good?"],
    ]


@pytest.mark.parametrize(
    ("status", "answer", "error"),
    [
        (200, {"scores": [0.5], "version": 1}, NoVerdict),
        (200, {"version": 1}, NoVerdict),
        (200, {"scores": ["x", 1], "version": 1}, NoVerdict),
        (404, {}, UnverifiableCase),
        (503, {}, Unavailable),
    ],
)
def test_the_verifier_raises_by_the_kind_of_failure(status: int, answer: Any, error: type[Exception]) -> None:
    with worker(status, answer) as (url, _), pytest.raises(error):
        verifier(url, head="scalar").verify(CASE)


def test_an_unreachable_worker_is_unavailable_and_bad_options_are_rejected() -> None:
    with pytest.raises(Unavailable):
        verifier("http://127.0.0.1:9").verify(CASE)
    with pytest.raises(InvalidOptions):
        verifier("", positive="no")

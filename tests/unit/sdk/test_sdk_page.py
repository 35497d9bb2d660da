"""Run the programs of docs/sdk.md."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from order_model import order_model

from stepstream import sdk
from stepstream.config import Settings
from stepstream.jobs.governance.validation import check_feedback, check_step

PAGE = (Path(__file__).parents[3] / "docs" / "sdk.md").read_text()
PROGRAMS = re.findall(r"^## (.+?)\n(?:(?!^## ).)*?^```python\n(.*?)^```$", PAGE, flags=re.M | re.S)


@pytest.fixture
def sink() -> Iterator[sdk.MemorySink]:
    sink = sdk.MemorySink()
    sdk.configure(Settings(), sink=sink)
    yield sink
    sdk.uninstrument()
    sdk.close()


@pytest.fixture(autouse=True)
def model(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let the page's `openai.OpenAI()` call a scripted model."""
    with order_model() as url:
        monkeypatch.setenv("OPENAI_BASE_URL", url)
        monkeypatch.setenv("OPENAI_API_KEY", "none")
        yield


@pytest.mark.parametrize(("title", "program"), PROGRAMS, ids=[title for title, _ in PROGRAMS])
def test_programs_of_the_page_run(title: str, program: str, sink: sdk.MemorySink) -> None:
    exec(compile(program, f"docs/sdk.md: {title}", "exec"), {"__name__": "program"})
    for topic, _, record in sink.events:
        (check_step if topic == "steps" else check_feedback)(record)
    assert sink.events or "MemorySink" in program


def test_every_program_of_the_page_is_found() -> None:
    assert len(PROGRAMS) == PAGE.count("```python\n") == 9


def test_the_first_program_records_two_steps_and_a_reward(sink: sdk.MemorySink) -> None:
    exec(PROGRAMS[0][1], {"__name__": "program"})
    first, second = sink.of("steps")
    assert first["response"]["tool_calls"][0]["result"] == "4"
    assert (second["prompt_shared_messages"], second["response"]["content"]) == (2, "11")
    assert [entry["name"] for entry in sink.of("feedback")] == ["outcome", "end"]

"""Each `stepstream keys create` of the docs declares what a key needs, and publishes one."""

import re
import shlex
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from stepstream.cli import keys
from stepstream.cli.main import run
from stepstream.config import Settings

ROOT = Path(__file__).parents[3]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
COMMANDS = {
    f"{page.relative_to(ROOT)}: {words}": words
    for page in PAGES
    for words in re.findall(r"stepstream (keys create --[^`\n]*)", page.read_text())
}


@pytest.fixture
def published(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    records: list[Any] = []
    monkeypatch.setattr(keys, "_log", lambda: nullcontext(Settings()))
    monkeypatch.setattr(keys, "_publish", lambda settings, record: records.append(record))
    return records


def test_the_docs_show_how_to_create_a_key() -> None:
    assert {name.partition(":")[0] for name in COMMANDS} >= {"docs/deploy.md", "docs/gateway.md"}


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_a_command_of_the_docs_creates_a_key(command: str, published: list[Any]) -> None:
    assert run(shlex.split(command)) == 0
    [record] = published
    assert record["consent"]
    assert "calls" not in record["scopes"] or record["models"]

"""Check docs/concepts.md: every function that it links exists in the file that the link names."""

import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/concepts.md"
LINKS = re.findall(r"\[`([\w.]+)`\]\(\.\./([\w/.-]+\.py)\)", PAGE.read_text())


def test_the_page_links_the_functions_of_every_stage() -> None:
    stages = re.split(r"^### ", PAGE.read_text(), flags=re.MULTILINE)[1:]
    assert len(stages) == 7
    assert all(re.search(r"\[`[\w.]+`\]\(\.\./", stage) for stage in stages)


@pytest.mark.parametrize(("name", "file"), LINKS)
def test_a_linked_function_exists(name: str, file: str) -> None:
    module = file.partition("/")[2].removesuffix(".py").replace("/", ".")
    found = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    assert callable(found)
    assert found.__module__ == module, f"{name} is defined in {found.__module__}; link that file"

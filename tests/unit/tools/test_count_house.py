"""Test the counts: sizes by kind, the path of one step, import circles."""

import pytest
from count_house import Stop, circles, imports, kind, links, listed, missing, sizes, way

CIRCLE = {
    "topics/stepstream/topics/codec.py": "from stepstream.topics.table import Table\n",
    "topics/stepstream/topics/table.py": "def f():\n    from stepstream.topics import codec\n",
    "core/stepstream/core/a.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import stepstream.core.b\n",
    "core/stepstream/core/b.py": "from .a import x\n",
}


def test_files_are_counted_by_kind_and_size() -> None:
    files = {
        "topics/stepstream/topics/codec.py": "x = 1\n" * 80,
        "topics/stepstream/topics/__init__.py": "",
        "topics/stepstream/topics/events.py": "x = 1\n" * 401,
        "sdk/stepstream/sdk/api.py": "x = 1\n" * 39,
        "tests/unit/test_api.py": "x = 1\n" * 40,
        "README.md": "words\n",
    }
    counts = sizes(files)
    assert {group: (count["files"], count["lines"]) for group, count in counts.items()} == {
        "generated": (1, 401),
        "product": (3, 119),
        "product: sdk": (1, 39),
        "product: topics": (2, 80),
        "tests": (1, 40),
    }
    assert counts["generated"]["above 400"] == counts["product"]["80-150"] == counts["product"]["under 40"] == 1
    assert counts["product"]["__init__"] == counts["tests"]["40-79"] == 1


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("tools/a.py", "tools"),
        ("bench/a.py", "bench"),
        ("sdk/stepstream/topics/events.py", "generated"),
        ("core/stepstream/a.py", "product"),
    ],
)
def test_the_kind_of_a_file(path: str, expected: str) -> None:
    assert kind(path) == expected


def test_a_page_links_functions_in_order() -> None:
    page = "1. [`App.call`](../services/app.py#L40), then [`send`](../sdk/send.py) ([more](gateway.md)).\n[`f`](f.py)"
    assert links(page) == [Stop("services/app.py", "App.call"), Stop("sdk/send.py", "send"), Stop("docs/f.py", "f")]


def test_a_list_of_functions() -> None:
    assert listed(["# before", "", "a/b.py:C.d", "a/b.py:e  # why"]) == [Stop("a/b.py", "C.d"), Stop("a/b.py", "e")]


def test_changes_and_returns_on_the_path_of_a_step() -> None:
    stops = [Stop("a", "f"), Stop("a", "g"), Stop("b", "h"), Stop("a", "f"), Stop("c", "i"), Stop("b", "h")]
    assert way(stops) == {"functions": 4, "files": 3, "changes": 4, "returns": 2}
    assert way([]) == {"functions": 0, "files": 0, "changes": 0, "returns": 0}


def test_functions_that_a_file_does_not_define() -> None:
    files = {"a.py": "class A:\n    async def f(self): ...\ndef g(): ...\n"}
    stops = [Stop("a.py", "A.f"), Stop("a.py", "A"), Stop("a.py", "g"), Stop("a.py", "f"), Stop("b.py", "g")]
    assert missing(stops, files) == stops[3:]


def test_import_circles() -> None:
    assert circles(imports(CIRCLE, lazy=False)) == []
    assert circles(imports(CIRCLE, lazy=True)) == [["stepstream.topics.codec", "stepstream.topics.table"]]


def test_imports_for_type_checking_do_not_count() -> None:
    assert imports(CIRCLE, lazy=True)["stepstream.core.a"] == set()
    assert imports(CIRCLE, lazy=True)["stepstream.core.b"] == {"stepstream.core.a"}

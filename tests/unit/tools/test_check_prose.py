"""Test the prose check: hits in prose, none in code, quotations or other people's files."""

import subprocess
from pathlib import Path

import pytest
from check_prose import EXCLUDED, check, check_all, files


def found(path: str, content: str) -> list[tuple[int, str]]:
    return [(hit.line, hit.word) for hit in check(path, content)]


@pytest.mark.parametrize(
    ("prose", "words"),
    [
        ("Report the offsets of a partition.", []),
        ("The threshold of a lesson_count.", []),
        ("A p-value of 2 standard deviations.", []),
        ("NaN stands for a missing value.", []),
        ("The offsets that Kafka told.", ["told"]),
        ("Return the schema; no other field is ours.", ["is ours"]),
        ("Say `told` in code.", []),
        ("Whether a group teaches.", ["Whether"]),
        ("What was sent.", ["What"]),
        ("Send events. What arrives twice is dropped.", ["What"]),
        ("Send events, whatever comes, in vain.", ["in vain", "whatever"]),
    ],
)
def test_a_docstring(prose: str, words: list[str]) -> None:
    assert [word for _, word in found("sdk/a.py", f'def f():\n    """{prose}"""\n')] == words


@pytest.mark.parametrize(
    ("first_line", "words"),
    [("How Java is called.", ["How"]), ("The way of a step.", ["The way"]), ("send events.", ["s"]), ("Send it.", [])],
)
def test_a_modules_first_line(first_line: str, words: list[str]) -> None:
    hits = found("sdk/a.py", f'"""{first_line}"""\n')
    assert [word for _, word in hits if word != "The way of"] == words
    assert not [hit for hit in found("sdk/a.py", f'def f():\n    """{first_line}"""\n') if hit[1] in words]


def test_code_is_not_prose() -> None:
    assert found("sdk/a.py", 'told = {"told": 1}\nours(told)  # type: ignore[told]\n') == []


def test_comments_and_messages() -> None:
    content = 'x = 1  # what remains\n# Whether it is so,\n# whether or not.\nlog.error("nobody told the broker")\n'
    assert found("sdk/a.py", content) == [(1, "what"), (2, "Whether"), (4, "told")]
    assert found("tests/a.py", content) == [(1, "what"), (2, "Whether")], "tests hold data in their strings"


def test_lines_of_a_docstring_are_counted() -> None:
    assert found("a.py", 'def f():\n    """Send it.\n\n    Args:\n        told: the offset told.\n    """\n') == [
        (5, "told")
    ]


def test_markdown_outside_code() -> None:
    content = '# What it needs\n\nA `told` b.\n```\ntold\n```\nHe told [told](told.md) "they told".\n'
    assert found("docs/a.md", content) == [(1, "What"), (7, "told"), (7, "told")][:2]


def test_avro_docs() -> None:
    content = '{"type": "record", "doc": "A step.",\n "fields": [{"name": "told", "doc": "Whether it ended."}]}'
    assert found("avro-schemas/Step.avsc", content) == [(2, "Whether")]


def test_comments_of_other_languages() -> None:
    assert found("Makefile", "a:\n\techo told # told b\n") == [(2, "told")]
    assert found("examples/go/a.go", "x := 1 // told\n") == [(1, "told")]


@pytest.mark.parametrize(
    "path",
    ["LICENSE", "tests/data/a.md", "a/vendor/b.js", "requirements/dev.txt", "examples/node/package-lock.json"],
)
def test_other_peoples_files_are_excluded(path: str) -> None:
    assert EXCLUDED.search(path)


@pytest.mark.parametrize(
    "path",
    ["learner/stepstream/learner/data/attempt.py", "tests/unit/learner/data/test_attempt.py", "docs/data.md"],
)
def test_packages_named_data_are_checked(path: str) -> None:
    assert not EXCLUDED.search(path)


def test_a_repository(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    (tmp_path / ".gitignore").write_text("ignored.md\n")
    for name in ("a.md", "ignored.md", "b.bin"):
        (tmp_path / name).write_bytes(b"told\n" if name != "b.bin" else b"\xff\xfe")
    assert files(tmp_path) == [".gitignore", "a.md", "b.bin"]
    (hit,) = check_all(files(tmp_path), tmp_path)
    assert str(hit).startswith("a.md:1: told: told: ")

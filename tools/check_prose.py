"""Check the prose of code and docs for words and patterns that CONTRIBUTING.md rules out.

    python tools/check_prose.py [PATH ...]

Without a path it checks every file that git knows or does not ignore. It reads docstrings, comments and messages of
Python, comments of Makefile, TOML, YAML, shell, JavaScript, Go, Rust and Java, Markdown outside code, and the `doc`
fields of Avro schemas. It prints `file:line: text: word: remedy` for each hit and ends with status 1 after any.
"""

import argparse
import ast
import io
import json
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]

WORDS: dict[str, str] = {
    # pattern: remedy. A pattern matches whole words in any case.
    r"told|tells? of|is to be told": "name the act: reports, logs, states, sends, distinguishes",
    r"(?:of|than|with|from|by|to|beside|not|are|is|into|and) ours|(?:of|than|from|by|to|not|are|is) theirs":
        "name the thing: this project's, the package's, Stepstream's",
    r"stands(?! (?:for|in for)\b)|standing|stood": "is, remains, is in force, is active",
    r"in vain": "without success, or the failure itself",
    r"whatever|whoever|wherever|whichever": "name the cases, or say any",
    r"fates?": "outcome, drop reason",
    r"patience|patiently": "timeout, deadline, retry",
    r"lessons?": "learning signal",
    r"for the while|for a while|by and by|at once(?= it)": "state the condition or the time",
    r"the way of": "name the flow: path, sequence, life cycle",
    r"(?:is|are|was|were) to be": "must be, or the plain verb",
    r"where it may|as (?:many )?as may|as it is(?=[.;:,]|$)": "say which values are allowed",
    r"that is to say|so to speak|as it were": "delete it",
    r"nought|naught|thereof|therein|herein|whereupon|hitherto|hence(?:forth)?|lest|amid|amongst|whilst|thus":
        "a plain word of today",
    r"no one here wrote|nobody here wrote": "third-party",
    r"gives? way|goes? by the board|come to nothing|folds? to nothing": "the plain verb: is ignored, is dropped",
}  # fmt: skip

OPENINGS: dict[str, str] = {
    # pattern at the beginning of a docstring, a comment, a heading or a sentence of one: remedy
    r"What\b(?!['’]s\b|.*\?)": "begin with a verb (functions, modules) or a noun (classes, fields)",
    r"what\b(?!.*\?)": "name the thing: the comment's subject is a noun or a verb",
    r"[Ww]hether\b": '"True if ...", "Return True if ...", "Decide ..."',
}

SENTENCES: dict[str, str] = {
    # pattern at the beginning of a sentence: remedy
    r"What (?=[a-z`])(?!.*\?)": "name the thing: the subject of a sentence is a noun",
}

MODULE_OPENINGS: dict[str, str] = {
    # pattern at the beginning of a module's docstring: remedy
    r"(?:How|Where|Why|When|Who|Which|The way)\b": "begin a module with its verb and object",
    r"[a-z]": "begin with a capital letter",
}

_WORDS = [(re.compile(rf"(?<![\w`/.-])(?:{pattern})(?![\w`/-])", re.IGNORECASE), why) for pattern, why in WORDS.items()]
_SENTENCES = [(re.compile(rf"(?<=[.:;!?] ){pattern}"), why) for pattern, why in SENTENCES.items()]
_OPENINGS = [(re.compile(pattern), why) for pattern, why in OPENINGS.items()]
_MODULE_OPENINGS = [(re.compile(pattern), why) for pattern, why in MODULE_OPENINGS.items()]

EXCLUDED = re.compile(
    r"(?:^|/)(?:vendor|node_modules)/|^tests/data/"  # written by others, or recorded
    r"|^(?:LICENSE|CHANGELOG\.md)$"
    r"|^requirements/|\.lock$|lock\.json$|\.sum$"
    r"|(?:^|/)migrations/.*\.sql$"  # a database holds each one's hash: never edited
    r"|^topics/.*/events\.py$"  # generated from the schemas
    r"|^tools/(?:check_prose|count_house)\.py$|^tests/unit/tools/"  # these name the words
)
HASH_COMMENTS = {".toml", ".sh", ".yaml", ".yml", ".cfg"}
SLASH_COMMENTS = {".js", ".mjs", ".cjs", ".go", ".rs", ".java"}
_DIRECTIVE = re.compile(r"#\s*(?:type:|noqa|fmt:|pragma|!|ruff:|mypy:)")
_SQL = re.compile(r"\b(?:SELECT|INSERT INTO|ALTER TABLE|CREATE)\b")
_PROSE = re.compile(r"[A-Za-z]{2,}[,;:]? [A-Za-z(`%{]")


class Text(NamedTuple):
    """A piece of prose and the line where it begins, from 1."""

    line: int
    text: str
    opens: bool = False
    """It begins a docstring, a heading, a comment or a field's description."""
    module: bool = False
    """It is a module's docstring."""


class Hit(NamedTuple):
    """One finding."""

    path: str
    line: int
    text: str
    word: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text}: {self.word}: {self.remedy}"


def check(path: str, content: str) -> list[Hit]:
    """Return the hits in a file's content, by line.

    Args:
        path: relative to the repository's root; its name says how the content is read.
        content: the file's text.
    """
    hits = [hit for text in texts(path, content) for hit in _hits(path, text)]
    return sorted(set(hits), key=lambda hit: (hit.line, hit.word))


def _hits(path: str, text: Text) -> Iterator[Hit]:
    lines = text.text.split("\n")
    for offset, line in enumerate(lines):
        prose = _without_code(line)
        for pattern, remedy in _WORDS + _SENTENCES:
            for found in pattern.finditer(prose):
                yield Hit(path, text.line + offset, _excerpt(line, found.start()), found[0].strip(), remedy)
    if not text.opens:
        return
    first = lines[0].strip()
    for pattern, remedy in _OPENINGS + (_MODULE_OPENINGS if text.module else []):
        if opening := pattern.match(first):
            yield Hit(path, text.line, _excerpt(first, 0), opening[0], remedy)


def _without_code(line: str) -> str:
    """Blank out inline code, link targets, quotations and the name that a line of `Args:` begins with."""
    code = r"`[^`]*`|\]\([^)]*\)|https?://\S+|\"[^\"]{1,60}\"|^\s+\w+:(?= )"
    return re.sub(code, lambda found: " " * len(found[0]), line)


def _excerpt(line: str, at: int) -> str:
    """Return up to 100 characters of a line around the index `at`."""
    begin = max(0, min(at - 40, len(line) - 100))
    return ("..." if begin else "") + line[begin : begin + 100].strip() + ("..." if begin + 100 < len(line) else "")


def texts(path: str, content: str) -> Iterator[Text]:
    """Yield the prose of a file."""
    suffix, name = Path(path).suffix, Path(path).name
    if suffix == ".py":
        yield from _python(content, messages=not path.startswith("tests/"))
    elif suffix == ".md":
        yield from _markdown(content)
    elif suffix == ".avsc":
        yield from _avro(content)
    elif suffix in HASH_COMMENTS or name in {"Makefile", ".gitignore"} or path.startswith(".ci/"):
        yield from _comments(content, "#")
    elif suffix in SLASH_COMMENTS:
        yield from _comments(content, "//")


def _python(content: str, messages: bool) -> Iterator[Text]:
    tree = ast.parse(content)
    described: set[int] = set()
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if not isinstance(body, list):
            continue
        # A string that is a statement: a docstring, or the description of the field above it.
        for index, statement in enumerate(body):
            value = statement.value if isinstance(statement, ast.Expr) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                described.add(id(value))
                yield Text(value.lineno, value.value, True, isinstance(node, ast.Module) and index == 0)
    for node in ast.walk(tree) if messages else ():
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in described:
            text = node.value.replace("\n", " ")
            if _PROSE.search(text) and not _SQL.search(text):
                yield Text(node.lineno, text)
    previous = (-1, -1)
    for token in tokenize.generate_tokens(io.StringIO(content).readline):
        if token.type == tokenize.COMMENT and not _DIRECTIVE.match(token.string):
            line, column = token.start
            yield Text(line, token.string.lstrip("#:! "), opens=previous != (line - 1, column))
            previous = token.start


def _comments(content: str, mark: str) -> Iterator[Text]:
    pattern = re.compile(rf"(?:^|\s){mark}+!?\s?(.*)")
    previous = -1
    for number, line in enumerate(content.splitlines(), 1):
        if (found := pattern.search(line)) and not line.startswith("#!"):
            yield Text(number, found[1], opens=number != previous + 1)
            previous = number


def _markdown(content: str) -> Iterator[Text]:
    fence = ""
    for number, line in enumerate(content.splitlines(), 1):
        mark = re.match(r"\s*(```+|~~~+)", line)
        if mark and (not fence or mark[1].startswith(fence)):
            fence = "" if fence else mark[1]
        elif not fence:
            heading = re.match(r"#+\s+(.*)", line)
            yield Text(number, heading[1] if heading else line, opens=bool(heading))


def _avro(content: str) -> Iterator[Text]:
    lines = content.splitlines()

    def docs(node: object) -> Iterator[str]:
        if isinstance(node, dict):
            for key, value in node.items():
                if key == "doc" and isinstance(value, str):
                    yield value
                else:
                    yield from docs(value)
        elif isinstance(node, list):
            for each in node:
                yield from docs(each)

    at = 0
    for doc in docs(json.loads(content)):
        quoted = json.dumps(doc, ensure_ascii=False)
        at = next((index for index in range(at, len(lines)) if quoted in lines[index]), at)
        yield Text(at + 1, doc, opens=True)


def files(root: Path = ROOT) -> list[str]:
    """Return the paths of the files to check, relative to `root`, sorted."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=root, capture_output=True, text=True, check=True,
    )  # fmt: skip
    names = sorted(set(listed.stdout.splitlines()))
    return [name for name in names if not EXCLUDED.search(name) and (root / name).is_file()]


def check_all(paths: Iterable[str], root: Path = ROOT) -> list[Hit]:
    """Return the hits of several files; a file that is gone or is not UTF-8 has none."""
    hits: list[Hit] = []
    for path in paths:
        try:
            content = (root / path).read_text(encoding="utf-8")
        except (UnicodeDecodeError, FileNotFoundError):
            continue
        hits += check(path, content)
    return hits


def main() -> int:
    """Print the hits; return 1 if there are any."""
    parser = argparse.ArgumentParser(description="Check the prose of code and docs.")
    parser.add_argument("paths", nargs="*", metavar="PATH", help="a file or folder; default: the whole repository")
    wanted = [str(Path(path).resolve().relative_to(ROOT)) for path in parser.parse_args().paths]
    chosen = [
        name
        for name in files()
        if not wanted or any(each in (".", name) or name.startswith(f"{each}/") for each in wanted)
    ]
    hits = check_all(chosen)
    for hit in hits:
        print(hit)
    print(f"{len(hits)} hits in {len({hit.path for hit in hits})} of {len(chosen)} files", file=sys.stderr)
    return 1 if hits else 0


if __name__ == "__main__":
    sys.exit(main())

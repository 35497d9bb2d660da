"""Count the files, lines, import circles and the path of one step, in the working tree or at a git revision.

    python tools/count_house.py [--rev REV] [--way FILE] [--json]

Product code, tests and benches are counted apart; so is the module that is generated from the schemas. The path of one
step is the list of functions that docs/concepts.md links in order,
[`Name`](../services/stepstream/services/gateway/app.py#L40), or with `--way` a file of lines
`root/stepstream/file.py:Qualified.name`. Lines that begin with `#` are skipped there.
"""

import argparse
import ast
import json
import posixpath
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import check_prose

ROOT = Path(__file__).parents[1]
PAGE = "docs/concepts.md"
GENERATED = re.compile(r"(?:^|/)topics/events\.py$")
SIZES = ((0, 39), (40, 79), (80, 150), (151, 300), (301, 400), (401, sys.maxsize))
"""Ranges of lines of a file, both ends included."""


def _range(low: int, high: int) -> str:
    return f"above {low - 1}" if high == sys.maxsize else f"under {high + 1}" if low == 0 else f"{low}-{high}"


COLUMNS = ("files", "lines", "__init__", *(_range(low, high) for low, high in SIZES))
"""Files, their lines, package files, and all other files by size."""

_LINK = re.compile(r"\[`([^`\]]+)`\]\(([^)#\s]+\.py)(?:#L(\d+))?\)")


class Stop(NamedTuple):
    """A function on the path of one step."""

    file: str
    name: str


def tree(rev: str | None) -> dict[str, str]:
    """Return the content of every Python and Markdown file by its path.

    Args:
        rev: a git revision; None: the working tree with files that git does not ignore.
    """
    if rev is None:
        listed = _git("ls-files", "--cached", "--others", "--exclude-standard", "--", "*.py", "*.md").splitlines()
        found = {name: ROOT / name for name in sorted(set(listed)) if (ROOT / name).is_file()}
        return {name: path.read_text(encoding="utf-8") for name, path in found.items()}
    names = [name for name in _git("ls-tree", "-r", "--name-only", rev).splitlines() if name.endswith((".py", ".md"))]
    asked = "".join(f"{rev}:{name}\n" for name in names).encode()
    done = subprocess.run(["git", "cat-file", "--batch"], cwd=ROOT, input=asked, capture_output=True, check=True)
    contents, at = {}, 0
    for name in names:
        end = done.stdout.index(b"\n", at)
        size = int(done.stdout[at:end].split()[2])
        contents[name] = done.stdout[end + 1 : end + 1 + size].decode()
        at = end + size + 2
    return contents


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def kind(path: str) -> str:
    """Return `tests`, `bench`, `tools`, `examples`, `generated` or `product` for a Python file."""
    root = path.split("/", 1)[0]
    if root in {"tests", "bench", "tools", "examples"}:
        return root
    return "generated" if GENERATED.search(path) else "product"


def sizes(files: Mapping[str, str]) -> dict[str, dict[str, int]]:
    """Return the counts `COLUMNS` of Python files by kind, and by root for product code."""
    counts: dict[str, dict[str, int]] = {}
    for path, content in files.items():
        if not path.endswith(".py"):
            continue
        lines = len(content.splitlines())
        groups = [kind(path)]
        if groups[0] == "product":
            groups.append(f"product: {path.split('/', 1)[0]}")
        for group in groups:
            count = counts.setdefault(group, dict.fromkeys(COLUMNS, 0))
            count["files"] += 1
            count["lines"] += lines
            if path.endswith("/__init__.py"):
                count["__init__"] += 1
            else:
                count[next(_range(low, high) for low, high in SIZES if low <= lines <= high)] += 1
    return dict(sorted(counts.items()))


def links(page: str, path: str = PAGE) -> list[Stop]:
    """Return the functions that a Markdown page links, in order; `path` is the page's own."""
    folder = posixpath.dirname(path)
    return [Stop(posixpath.normpath(posixpath.join(folder, file)), name) for name, file, _ in _LINK.findall(page)]


def listed(lines: Iterable[str]) -> list[Stop]:
    """Return the functions of lines `file.py:Qualified.name`; blank lines and comments are skipped."""
    named = (line.split("#", 1)[0].strip() for line in lines)
    return [Stop(*line.rsplit(":", 1)) for line in named if line]


def way(stops: list[Stop]) -> dict[str, int]:
    """Return what a reader passes on the path of one step.

    `functions` and `files` count distinct ones; `changes` counts steps from one file to another; `returns` counts the
    changes into a file that was left before.
    """
    changes = returns = 0
    left: set[str] = set()
    for before, after in pairwise(stops):
        if before.file != after.file:
            changes += 1
            left.add(before.file)
            returns += after.file in left
    return {
        "functions": len(set(stops)),
        "files": len({stop.file for stop in stops}),
        "changes": changes,
        "returns": returns,
    }


def missing(stops: list[Stop], files: Mapping[str, str]) -> list[Stop]:
    """Return the functions of a path that their file does not define."""
    return [stop for stop in stops if stop.name not in _definitions(files.get(stop.file, ""))]


def _definitions(content: str) -> set[str]:
    found: set[str] = set()

    def collect(body: Iterable[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                found.add(prefix + node.name)
                if isinstance(node, ast.ClassDef):
                    collect(node.body, f"{prefix}{node.name}.")

    collect(ast.parse(content).body, "")
    return found


def imports(files: Mapping[str, str], lazy: bool) -> dict[str, set[str]]:
    """Return the modules of the package that each module imports; imports for type checking do not count.

    Args:
        files: content by path.
        lazy: count imports inside functions too.
    """
    modules = {_module(path): path for path in files if path.endswith(".py") and kind(path) in {"product", "generated"}}
    graph: dict[str, set[str]] = {}
    for module, path in modules.items():
        package = module if path.endswith("/__init__.py") else module.rpartition(".")[0]
        graph[module] = set()
        for node in _import_nodes(ast.parse(files[path]).body, lazy):
            for name in _imported(node, package):
                target = name if name in modules else name.rpartition(".")[0]
                if target in modules and target != module:
                    graph[module].add(target)
    return graph


def _module(path: str) -> str:
    """Return the dotted name of a file below a root, such as `stepstream.topics.codec`."""
    name = path.removesuffix(".py").removesuffix("/__init__")
    return name.split("/", 1)[1].replace("/", ".") if "/" in name else name


def _import_nodes(body: Iterable[ast.AST], lazy: bool) -> Iterable[ast.Import | ast.ImportFrom]:
    for node in body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            yield from _import_nodes(node.orelse, lazy)
        elif lazy or not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from _import_nodes(ast.iter_child_nodes(node), lazy)


def _imported(node: ast.Import | ast.ImportFrom, package: str) -> list[str]:
    """Return the dotted names that a statement imports: `a.b` and each `a.b.name` of `from a.b import name`."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    parents = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
    base = ".".join([*parents, *([node.module] if node.module else [])])
    return [f"{base}.{alias.name}" for alias in node.names]


def circles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Return the groups of modules that import each other, directly or not: the strongly connected components."""
    reached = {module: _reachable(graph, module) for module in graph}
    groups = {
        tuple(sorted({module, *(other for other in targets if module in reached[other])}))
        for module, targets in reached.items()
        if module in targets
    }
    return [list(group) for group in sorted(groups)]


def _reachable(graph: Mapping[str, set[str]], module: str) -> set[str]:
    found: set[str] = set()
    waiting = list(graph[module])
    while waiting:
        if (target := waiting.pop()) not in found:
            found.add(target)
            waiting += graph[target]
    return found


def prose(files: Mapping[str, str]) -> dict[str, int]:
    """Return how many lines the prose check objects to, in Python and in Markdown."""
    counts = {"python": 0, "markdown": 0}
    for path, content in files.items():
        if not check_prose.EXCLUDED.search(path):
            counts["python" if path.endswith(".py") else "markdown"] += len(
                {hit.line for hit in check_prose.check(path, content)}
            )
    return counts


def count(rev: str | None, way_file: Path | None) -> dict[str, Any]:
    """Return all counts of the working tree or a revision."""
    files = tree(rev)
    if way_file is None:
        stops = links(files.get(PAGE, ""))
    else:
        stops = listed(way_file.read_text(encoding="utf-8").splitlines())
    return {
        "revision": rev or "working tree",
        "sizes": sizes(files),
        "step": way(stops),
        "step_missing": [f"{stop.file}:{stop.name}" for stop in missing(stops, files)],
        "circles": circles(imports(files, lazy=False)),
        "circles_with_lazy_imports": circles(imports(files, lazy=True)),
        "prose_lines": prose(files),
    }


def table(counts: Mapping[str, Any]) -> str:
    """Return the counts as text."""
    rows = [["Python", *COLUMNS]]
    rows += [[group, *(str(count[column]) for column in COLUMNS)] for group, count in counts["sizes"].items()]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [f"Revision: {counts['revision']}", ""]
    for first, *rest in rows:
        lines.append("  ".join([first.ljust(widths[0]), *map(str.rjust, rest, widths[1:])]))
    step = counts["step"]
    lines += [
        "",
        f"Path of one step: {step['functions']} functions, {step['files']} files, {step['changes']} changes of file, "
        f"{step['returns']} into a file left before",
        *(f"  not defined: {name}" for name in counts["step_missing"]),
    ]
    for name, title in (("circles", "Import circles"), ("circles_with_lazy_imports", "  with imports in functions")):
        found = counts[name]
        lines.append(f"{title}: {len(found)} of {sum(map(len, found))} modules")
        lines += [f"    {' '.join(circle)}" for circle in found]
    python, markdown = counts["prose_lines"].values()
    lines.append(f"Lines that check_prose.py objects to: {python} in Python, {markdown} in Markdown")
    return "\n".join(lines)


def main() -> None:
    """Print the counts."""
    parser = argparse.ArgumentParser(description="Count the repository's files, import circles and the path of a step.")
    parser.add_argument("--rev", help="a git revision; default: the working tree")
    parser.add_argument("--way", type=Path, help="lines FILE.py:Qualified.name in the order of one step")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    counts = count(options.rev, options.way)
    print(json.dumps(counts, indent=2) if options.json else table(counts))


if __name__ == "__main__":
    main()

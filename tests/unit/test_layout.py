"""Check the layout: namespace roots, light imports, file sizes, lock files, lists of tests."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOTS = ("avro-schemas", "core", "topics", "sdk", "stream-jobs", "learner", "services", "infra")


@pytest.mark.parametrize("root", ROOTS)
def test_roots_are_namespace_packages(root: str) -> None:
    assert (ROOT / root / "stepstream").is_dir()
    assert not (ROOT / root / "stepstream" / "__init__.py").exists()


@pytest.mark.parametrize(
    "module",
    [
        "stepstream.topics.producer",
        "stepstream.topics.consumer",
        "stepstream.topics.admin",
        "stepstream.sdk",
        "stepstream.cli.main",
    ],
)
def test_the_core_imports_without_heavy_packages(module: str) -> None:
    code = (
        f"import sys, {module}\n"
        "heavy = {'torch', 'faust', 'fastapi', 'starlette', 'aiohttp', 'transformers', 'chdb', 'vllm'}\n"
        "print(*sorted(heavy & set(sys.modules)))"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert loaded == []


def test_lock_files_hold_no_addresses() -> None:
    for lock in (ROOT / "requirements").glob("*.txt"):
        assert "://" not in lock.read_text(), lock


GENERATED = "topics/stepstream/topics/events.py"


def test_no_module_is_longer_than_400_lines() -> None:
    listed = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    paths = [ROOT / name for name in listed.split() if name != GENERATED]
    lines = {path: len(path.read_text("utf-8").splitlines()) for path in paths if path.exists()}
    assert len(lines) > 500
    assert {str(path): count for path, count in lines.items() if count > 400} == {}


def test_the_makefile_lists_tests_that_exist() -> None:
    lists = dict(re.findall(r"^(\w+_TESTS) :=((?:\\\n|.)*)$", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {"STRANGER_TESTS", "PROXY_TESTS", "SERVING_TESTS", "CONSOLE_TESTS", "CONTROL_TESTS"} <= set(lists)
    for name, text in lists.items():
        for item in text.replace("\\\n", " ").split():
            file, _, test = item.partition("::")
            assert (ROOT / file).exists(), f"{name}: {item}"
            assert not test or f"def {test}(" in (ROOT / file).read_text(), f"{name}: {item}"

"""Test that the browser's files are those of the npm packages byte for byte, and that TypeScript accepts ours."""

import hashlib
import json
import shutil
import subprocess
from pathlib import Path

from stepstream.services.console.app import STATIC

VENDOR = STATIC / "vendor"
LOCK = json.loads((VENDOR / "lock.json").read_text())


def test_every_vendored_file_has_the_locked_digest() -> None:
    found = {
        path.relative_to(VENDOR).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in VENDOR.rglob("*")
        if path.is_file() and path.name != "lock.json"
    }
    assert found == {
        f"{package}/{name}": entry["sha256"]
        for package, locked in LOCK.items()
        for name, entry in locked["files"].items()
    }


def test_every_vendored_file_is_that_of_its_package(console_packages: Path) -> None:
    for package, locked in LOCK.items():
        source = console_packages / "node_modules" / package
        assert json.loads((source / "package.json").read_text())["version"] == locked["version"]
        for name, entry in locked["files"].items():
            assert (VENDOR / package / name).read_bytes() == (source / entry["file"]).read_bytes(), f"{package}/{name}"


def test_typescript_accepts_the_modules(console_packages: Path) -> None:
    static = console_packages / "static"
    shutil.copytree(STATIC, static)
    shutil.copytree(console_packages / "node_modules" / "lit-html", static / "vendor" / "lit-html", dirs_exist_ok=True)
    checked = subprocess.run(
        ["node_modules/.bin/tsc", "--project", "tsconfig.json"],
        cwd=console_packages,
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.stdout == ""
    assert checked.returncode == 0

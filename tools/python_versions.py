"""Run the unit tests under other versions of Python, each in an environment of its own.

`make test-python` runs this. On Linux x86-64 an interpreter comes from Maven Central (26 MB, python_versions.lock),
elsewhere from the PATH. The environments are `.venv-py3.12` and so on, 1.8 GB each. They have every package in the
version of requirements/dev.txt but torch, transformers and vLLM, so tests that import these are left out.
"""

import argparse
import hashlib
import platform
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
LOCK = Path(__file__).with_name("python_versions.lock")
EXTRAS = "jobs,services,embedded,fleet,datasets,detectors"
NEED_TORCH = ("learner", "inference", "bench")
"""Folders of tests/unit that import torch."""


class Interpreter(NamedTuple):
    """One line of the lock; the archive holds a whole CPython."""

    group: str
    artefact: str
    version: str
    classifier: str
    sha256: str

    @property
    def minor(self) -> str:
        """The version of Python, e.g. `3.12`."""
        return ".".join(self.version.split(".")[:2])


def locked() -> dict[str, Interpreter]:
    """Return the interpreters of the lock by `minor`."""
    lines = LOCK.read_text(encoding="utf-8").splitlines()
    found = [Interpreter(*line.split()) for line in lines if not line.startswith("#")]
    return {interpreter.minor: interpreter for interpreter in found}


def interpreter_of(minor: str, folder: Path) -> Path:
    """Return the path of an interpreter; fetch it into `folder` where the lock has one for this platform.

    Raises:
        SystemExit: no interpreter of this version, or an archive whose hash is not the lock's.
    """
    if sys.platform == "linux" and platform.machine() == "x86_64" and minor in locked():
        return fetch(locked()[minor], folder)
    found = shutil.which(f"python{minor}")
    if found is None:
        raise SystemExit(f"no python{minor} on the PATH: install Python {minor}")
    return Path(found)


def fetch(wanted: Interpreter, folder: Path) -> Path:
    """Unpack an interpreter into `folder` unless it is there."""
    python = folder / "org/bytedeco/cpython" / wanted.classifier / "bin" / f"python{wanted.minor}"
    if python.exists():
        return python
    from jgo.maven import MavenContext  # knows Maven Central's address

    print(f"== Python {wanted.version} from Maven Central", flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        project = MavenContext(repo_cache=Path(scratch)).project(wanted.group, wanted.artefact)
        archive = Path(project.at_version(wanted.version).artifact(wanted.classifier, "jar").resolve())
        found = hashlib.sha256(archive.read_bytes()).hexdigest()
        if found != wanted.sha256:
            raise SystemExit(f"{archive.name} has sha256 {found}, the lock has {wanted.sha256}: not used")
        shutil.rmtree(folder, ignore_errors=True)
        partial = folder.with_name(folder.name + ".partial")
        shutil.rmtree(partial, ignore_errors=True)
        with zipfile.ZipFile(archive) as files:
            files.extractall(partial)
        partial.rename(folder)
    python.chmod(0o755)
    home = python.parents[1]
    for library in home.glob("libffi.so.*"):  # the module `_ctypes` looks for it beside itself
        (home / "lib" / f"python{wanted.minor}" / "lib-dynload" / library.name).symlink_to(library)
    return python


def prepare(minor: str) -> Path:
    """Return the interpreter of an environment with the locked packages, made anew where the lock changed."""
    environment = ROOT / f".venv-py{minor}"
    environment.mkdir(exist_ok=True)
    python = environment / "bin" / "python"
    wanted = hashlib.sha256((ROOT / "requirements/dev.txt").read_bytes() + LOCK.read_bytes()).hexdigest()
    marker = environment / ".done"
    if python.exists() and marker.exists() and marker.read_text(encoding="utf-8") == wanted:
        return python
    uv = Path(sys.executable).with_name("uv")
    base = interpreter_of(minor, environment / "cpython")
    print(f"== packages for Python {minor} in {environment.name}", flush=True)
    run(uv, "venv", "--quiet", "--allow-existing", "--python", base, environment)
    run(
        uv, "pip", "install", "--quiet", "--python", python, "--constraint", "requirements/dev.txt",
        "--group", "dev", "--group", "build", "--editable", f".[{EXTRAS}]",
    )  # fmt: skip
    marker.write_text(wanted, encoding="utf-8")
    return python


def run(*command: str | Path) -> None:
    """Run a command in the repository's root.

    Raises:
        SystemExit: the command failed.
    """
    done = subprocess.run(command, cwd=ROOT, check=False)
    if done.returncode:
        raise SystemExit(done.returncode)


def main() -> None:
    """Test each version that the command line names, by default every one of the lock."""
    parser = argparse.ArgumentParser(description="Run the unit tests under other versions of Python.")
    parser.add_argument("versions", nargs="*", default=sorted(locked()), metavar="VERSION", help="such as 3.13")
    parser.add_argument("--processes", default="3", help="files tested at once")
    options = parser.parse_args()
    for minor in options.versions:
        python = prepare(minor)
        print(f"== unit tests under Python {minor}", flush=True)
        ignored = [f"--ignore=tests/unit/{folder}" for folder in NEED_TORCH]
        parallel = ("--numprocesses", options.processes, "--dist", "loadfile")
        run(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *parallel, *ignored, "tests/unit")


if __name__ == "__main__":
    main()

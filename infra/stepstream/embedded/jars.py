"""Fetch Kafka's jars from Maven Central and check each against the lock before use.

`python -m stepstream.embedded.jars lock` resolves the dependencies again and prints a new lock.
"""

import fcntl
import hashlib
import json
import logging
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from stepstream.embedded.errors import StackError
from stepstream.embedded.jar_lock import KAFKA_VERSION, Jar, committed, digest, render

_KAFKA = f"org.apache.kafka:kafka_2.13:{KAFKA_VERSION}"
# Kafka's POM names log4j's core but not its slf4j binding, which Kafka's own distribution also adds by hand.
_BINDING = ("org.apache.logging.log4j", "log4j-slf4j-impl")
_ATTEMPTS = 3
_TIMEOUT_S = 60
_PARALLEL = 4
_MARKER = "fetched.json"

Progress = Callable[[int, int], None]
Fetch = Callable[[Jar, Path], Path]


def paths(home: Path) -> list[Path]:
    """Return the class path: the path of every locked jar, sorted. The files need not exist."""
    return sorted(home / "jars" / jar.filename for jar in committed())


def installed(home: Path) -> bool:
    """Return True if the locked jars were fetched and checked; compares a marker and sizes, not every byte."""
    try:
        marker = json.loads((home / _MARKER).read_text(encoding="utf-8"))
        sizes = {path.name: path.stat().st_size for path in paths(home)}
    except (OSError, ValueError):
        return False
    return bool(marker == {"lock": digest(committed()), "sizes": sizes})


def install(home: Path, progress: Progress = lambda done, total: None) -> None:
    """Fetch the jars that are missing or whose hash differs from the lock. Concurrent processes wait for each other.

    Args:
        home: folder of `jars/` and the marker.
        progress: called with (jars present, jars in total) after each jar.

    Raises:
        StackError: a jar cannot be fetched or its hash differs from the lock; the folder is not writable.
    """
    try:
        home.mkdir(parents=True, exist_ok=True)
        with locked(home):
            if not installed(home):  # another process may have installed them meanwhile
                fetch_all(committed(), home, progress)
    except OSError as error:
        raise StackError(f"cannot write Kafka's jars to {home} ({error}): set STEPSTREAM_BROKER_HOME") from None


def fetch_all(jars: tuple[Jar, ...], home: Path, progress: Progress, fetch: Fetch | None = None) -> None:
    """Fetch `jars` into `home` without taking the install lock; `fetch` replaces Maven Central in tests."""
    fetch = fetch or _from_maven
    folder = home / "jars"
    folder.mkdir(parents=True, exist_ok=True)
    (home / _MARKER).unlink(missing_ok=True)
    missing = [jar for jar in jars if not _has_hash_of(folder / jar.filename, jar)]
    done = len(jars) - len(missing)
    progress(done, len(jars))
    with ThreadPoolExecutor(_PARALLEL) as pool:
        for future in [pool.submit(_fetch_one, jar, folder, fetch) for jar in missing]:
            try:
                future.result()
            except BaseException:  # includes Ctrl-C, which must not wait for the other jars
                pool.shutdown(cancel_futures=True)
                raise
            done += 1
            progress(done, len(jars))
    sizes = {jar.filename: (folder / jar.filename).stat().st_size for jar in jars}
    write_atomically(home / _MARKER, json.dumps({"lock": digest(jars), "sizes": sizes}).encode())


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file that other processes see complete or not at all."""
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    partial.write_bytes(content)
    partial.replace(path)


@contextmanager
def locked(home: Path) -> Iterator[None]:
    """Hold the install lock of `home`; blocks while another process holds it."""
    with (home / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _fetch_one(jar: Jar, folder: Path, fetch: Fetch) -> None:
    with tempfile.TemporaryDirectory(dir=folder, prefix=".fetch-") as scratch:
        file = fetch(jar, Path(scratch))
        if not _has_hash_of(file, jar):
            raise StackError(
                f"{jar.filename} was fetched with sha256 {_sha256(file)}, but jars.lock has {jar.sha256}: "
                "the file was altered in transit and is not used; try again from a network that you trust"
            )
        file.replace(folder / jar.filename)


def _from_maven(jar: Jar, scratch: Path) -> Path:
    from jgo.maven import MavenContext  # carries the repository's address; 0.4 s to import

    context = MavenContext(repo_cache=scratch, timeout=_TIMEOUT_S)
    artefact = context.project(jar.group, jar.artefact).at_version(jar.version).artifact()
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            return Path(artefact.resolve())
        except Exception as error:  # jgo passes on the errors of its HTTP library and of the file system
            for partial in scratch.rglob("*.jar"):
                partial.unlink()
            if attempt == _ATTEMPTS:
                raise StackError(
                    f"{jar.filename} cannot be fetched from Maven Central ({type(error).__name__}: {error}): check "
                    "the network; behind a proxy set HTTPS_PROXY, and REQUESTS_CA_BUNDLE to its certificate"
                ) from error
            time.sleep(attempt)
    raise AssertionError("unreachable")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _has_hash_of(path: Path, jar: Jar) -> bool:
    return path.is_file() and _sha256(path) == jar.sha256


def resolve() -> tuple[Jar, ...]:
    """Resolve Kafka and its run-time dependencies, which takes about 30 s; `jars.lock` is the result."""
    from jgo.maven import MavenContext

    with tempfile.TemporaryDirectory() as scratch:
        context = MavenContext(repo_cache=Path(scratch), timeout=_TIMEOUT_S)
        direct, transitive = context.resolver.resolve([context.create_dependency(_KAFKA)])
        artefacts = [dependency.artifact for dependency in (*direct, *transitive)]
        core = next(artefact for artefact in artefacts if artefact.artifactId == "log4j-core")
        artefacts.append(context.project(*_BINDING).at_version(core.version).artifact())
        return tuple(Jar(a.groupId, a.artifactId, a.version, _sha256(a.resolve())) for a in artefacts)


if __name__ == "__main__":
    if sys.argv[1:] != ["lock"]:
        sys.exit("usage: python -m stepstream.embedded.jars lock > jars.lock")
    logging.basicConfig(level=logging.WARNING)
    sys.stdout.write(render(resolve()))

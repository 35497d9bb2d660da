"""Kafka's jars: fetched one exact artefact at a time, each checked against the lock before it is used.

`python -m stepstream.embedded.jars lock` resolves the dependencies again and prints a fresh lock.
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
from stepstream.embedded.lock import KAFKA_VERSION, Jar, committed, digest, render

_KAFKA = f"org.apache.kafka:kafka_2.13:{KAFKA_VERSION}"
# Kafka's POM names log4j's core but not what binds slf4j to it; its own distribution adds that by hand too.
_BINDING = ("org.apache.logging.log4j", "log4j-slf4j-impl")
_ATTEMPTS = 3
_TIMEOUT_S = 60
_PARALLEL = 4
_MARKER = "fetched.json"

Progress = Callable[[int, int], None]
Fetch = Callable[[Jar, Path], Path]


def paths(home: Path) -> list[Path]:
    """The class path: every jar's file, sorted, whether it is there or not."""
    return sorted(home / "jars" / jar.filename for jar in committed())


def installed(home: Path) -> bool:
    """Whether the jars of the lock were fetched and checked; looks at a marker and sizes, not at every byte."""
    try:
        marker = json.loads((home / _MARKER).read_text(encoding="utf-8"))
        sizes = {path.name: path.stat().st_size for path in paths(home)}
    except (OSError, ValueError):
        return False
    return bool(marker == {"lock": digest(committed()), "sizes": sizes})


def install(home: Path, progress: Progress = lambda done, of: None) -> None:
    """Fetches what is missing; a file that is there is kept if its hash is the lock's, else fetched again.

    Safe to run in several processes at once: they wait for each other.

    Args:
        home: folder that gets `jars/` and the marker.
        progress: called with (jars there, jars in all) as they arrive.

    Raises:
        StackError: a jar that cannot be fetched, or whose hash is not the lock's; a folder that cannot be written.
    """
    try:
        home.mkdir(parents=True, exist_ok=True)
        with locked(home):
            if not installed(home):  # by whoever held the lock before
                fetch_all(committed(), home, progress)
    except OSError as error:
        raise StackError(f"cannot keep Kafka's jars in {home} ({error}): set STEPSTREAM_BROKER_HOME") from None


def fetch_all(jars: tuple[Jar, ...], home: Path, progress: Progress, fetch: Fetch | None = None) -> None:
    """As `install`, without the lock file, with any jars and any way to fetch one."""
    fetch = fetch or _from_maven
    folder = home / "jars"
    folder.mkdir(parents=True, exist_ok=True)
    (home / _MARKER).unlink(missing_ok=True)
    missing = [jar for jar in jars if not _is(folder / jar.filename, jar)]
    done = len(jars) - len(missing)
    progress(done, len(jars))
    with ThreadPoolExecutor(_PARALLEL) as pool:
        for future in [pool.submit(_fetch_one, jar, folder, fetch) for jar in missing]:
            try:
                future.result()
            except BaseException:  # a Ctrl-C too does not wait for the rest
                pool.shutdown(cancel_futures=True)
                raise
            done += 1
            progress(done, len(jars))
    sizes = {jar.filename: (folder / jar.filename).stat().st_size for jar in jars}
    write_atomically(home / _MARKER, json.dumps({"lock": digest(jars), "sizes": sizes}).encode())


def write_atomically(path: Path, content: bytes) -> None:
    """Writes a file that other processes see whole or not at all."""
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    partial.write_bytes(content)
    partial.replace(path)


@contextmanager
def locked(home: Path) -> Iterator[None]:
    """Holds the install lock of a home; blocks while another process holds it."""
    with (home / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _fetch_one(jar: Jar, folder: Path, fetch: Fetch) -> None:
    with tempfile.TemporaryDirectory(dir=folder, prefix=".fetch-") as scratch:
        file = fetch(jar, Path(scratch))
        if not _is(file, jar):
            raise StackError(
                f"{jar.filename} was fetched with sha256 {_sha256(file)}, but jars.lock has {jar.sha256}: "
                "it was changed on its way here, and is not used. Try again from a network that you trust."
            )
        file.replace(folder / jar.filename)


def _from_maven(jar: Jar, scratch: Path) -> Path:
    from jgo.maven import MavenContext  # carries the repository's address; 0.4 s to import

    context = MavenContext(repo_cache=scratch, timeout=_TIMEOUT_S)
    artefact = context.project(jar.group, jar.artefact).at_version(jar.version).artifact()
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            return Path(artefact.resolve())
        except Exception as error:  # jgo raises whatever its HTTP library, or the file system, does
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


def _is(path: Path, jar: Jar) -> bool:
    return path.is_file() and _sha256(path) == jar.sha256


def resolve() -> tuple[Jar, ...]:
    """Resolves Kafka and its run-time dependencies anew, about 30 s; what `jars.lock` is made from."""
    from jgo.maven import MavenContext

    with tempfile.TemporaryDirectory() as scratch:
        context = MavenContext(repo_cache=Path(scratch), timeout=_TIMEOUT_S)
        given, transitive = context.resolver.resolve([context.create_dependency(_KAFKA)])
        artefacts = [dependency.artifact for dependency in (*given, *transitive)]
        core = next(artefact for artefact in artefacts if artefact.artifactId == "log4j-core")
        artefacts.append(context.project(*_BINDING).at_version(core.version).artifact())
        return tuple(Jar(a.groupId, a.artifactId, a.version, _sha256(a.resolve())) for a in artefacts)


if __name__ == "__main__":
    if sys.argv[1:] != ["lock"]:
        sys.exit("usage: python -m stepstream.embedded.jars lock > jars.lock")
    logging.basicConfig(level=logging.WARNING)
    sys.stdout.write(render(resolve()))

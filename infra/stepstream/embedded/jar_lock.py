"""Read and write `jars.lock`: one line for each artefact, `group artefact version sha256`, without addresses."""

import hashlib
import re
from dataclasses import dataclass
from importlib.resources import files

from stepstream.embedded.errors import StackError

KAFKA_VERSION = "4.3.1"
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, order=True)
class Jar:
    """One artefact of Maven Central and the required hash of its file."""

    group: str
    artefact: str
    version: str
    sha256: str

    @property
    def filename(self) -> str:
        """Maven's file name; unique in the lock."""
        return f"{self.artefact}-{self.version}.jar"

    def __str__(self) -> str:
        return f"{self.group} {self.artefact} {self.version} {self.sha256}"


def parse(text: str) -> tuple[Jar, ...]:
    """Return the jars of a lock, sorted by group and artefact.

    Raises:
        StackError: a line is malformed, or an artefact is listed twice.
    """
    jars = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        words = line.split()
        if len(words) != 4 or not _SHA256.fullmatch(words[3]):
            raise StackError(f"jars.lock, line {number}: expected 'group artefact version sha256'")
        jars.append(Jar(*words))
    names = [jar.filename for jar in jars]
    if duplicates := sorted({name for name in names if names.count(name) > 1}):
        raise StackError(f"jars.lock lists twice: {', '.join(duplicates)}")
    return tuple(sorted(jars))


def render(jars: tuple[Jar, ...]) -> str:
    """Return the lock's text, which `parse` reads back to the same jars."""
    head = (
        f"# Jars of Apache Kafka {KAFKA_VERSION} and its log4j binding: group artefact version sha256.\n"
        "# Written by `python -m stepstream.embedded.jars lock`.\n"
    )
    return head + "".join(f"{jar}\n" for jar in sorted(jars))


def committed() -> tuple[Jar, ...]:
    """Return the lock that the package contains."""
    return parse(files("stepstream.embedded").joinpath("jars.lock").read_text(encoding="utf-8"))


def digest(jars: tuple[Jar, ...]) -> str:
    """Return an identifier of these jars: the sha256, in hexadecimal, of the rendered lock."""
    return hashlib.sha256(render(jars).encode()).hexdigest()

"""The lock of Kafka's jars: one line an artefact, `group artefact version sha256`, no addresses."""

import hashlib
import re
from dataclasses import dataclass
from importlib.resources import files

from stepstream.embedded.errors import StackError

KAFKA_VERSION = "4.3.1"
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, order=True)
class Jar:
    """One exact artefact of Maven Central and the hash that its file must have."""

    group: str
    artefact: str
    version: str
    sha256: str

    @property
    def filename(self) -> str:
        """The file's name, as Maven has it; unique in the lock."""
        return f"{self.artefact}-{self.version}.jar"

    def __str__(self) -> str:
        return f"{self.group} {self.artefact} {self.version} {self.sha256}"


def parse(text: str) -> tuple[Jar, ...]:
    """Reads a lock, sorted by group and artefact.

    Raises:
        StackError: a line of another shape, or an artefact told twice.
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
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise StackError(f"jars.lock: told twice: {', '.join(twice)}")
    return tuple(sorted(jars))


def render(jars: tuple[Jar, ...]) -> str:
    """The lock's text; `parse` reads it back to the same jars."""
    head = (
        f"# Jars of Apache Kafka {KAFKA_VERSION} and its log4j binding: group artefact version sha256.\n"
        "# Written by `python -m stepstream.embedded.jars lock`.\n"
    )
    return head + "".join(f"{jar}\n" for jar in sorted(jars))


def committed() -> tuple[Jar, ...]:
    """The lock that the package carries."""
    return parse(files("stepstream.embedded").joinpath("jars.lock").read_text(encoding="utf-8"))


def digest(jars: tuple[Jar, ...]) -> str:
    """A name for exactly these jars: the sha256, in hexadecimal, of the rendered lock."""
    return hashlib.sha256(render(jars).encode()).hexdigest()

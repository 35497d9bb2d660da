"""The lock of Kafka's jars, and fetching against it; no network."""

import hashlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepstream.embedded import jars
from stepstream.embedded.errors import StackError
from stepstream.embedded.lock import KAFKA_VERSION, Jar, committed, digest, parse, render

WORDS = st.text("abcdefghijklmnopqrstuvwxyz0123456789.-_", min_size=1, max_size=20)
JARS = st.lists(
    st.builds(Jar, WORDS, WORDS, WORDS, st.binary(min_size=32, max_size=32).map(bytes.hex)),
    unique_by=lambda jar: jar.filename,
).map(lambda jars: tuple(sorted(jars)))


@given(JARS)
def test_lock_reads_back_as_it_was_written(locked: tuple[Jar, ...]) -> None:
    assert parse(render(locked)) == locked


@given(JARS.filter(lambda jars: len(jars) > 1))
def test_digest_tells_locks_apart(locked: tuple[Jar, ...]) -> None:
    assert digest(locked) == digest(tuple(reversed(locked)))
    assert digest(locked) != digest(locked[1:])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("group artefact 1.0", "line 1"),
        ("group artefact 1.0 abc", "line 1"),
        (f"g a 1.0 {'0' * 64}\nh a 1.0 {'1' * 64}", r"told twice: a-1\.0\.jar"),
    ],
)
def test_malformed_lock_is_refused(line: str, message: str) -> None:
    with pytest.raises(StackError, match=message):
        parse(line)


def test_committed_lock_is_the_broker_and_its_logging() -> None:
    names = {jar.artefact: jar.version for jar in committed()}
    assert len(names) == 46
    assert names["kafka_2.13"] == names["kafka-clients"] == KAFKA_VERSION
    assert names["log4j-core"] == names["log4j-slf4j-impl"]


CONTENT = {"one": b"first jar", "two": b"second jar"}
LOCKED = tuple(Jar("g", name, "1", hashlib.sha256(content).hexdigest()) for name, content in CONTENT.items())


def fetch(jar: Jar, scratch: Path) -> Path:
    file = scratch / "download"
    file.write_bytes(CONTENT[jar.artefact])
    return file


def test_fetches_only_what_is_missing_or_wrong(tmp_path: Path) -> None:
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / "one-1.jar").write_bytes(b"damaged")
    (tmp_path / "jars" / "two-1.jar").write_bytes(CONTENT["two"])
    fetched = []

    def counting(jar: Jar, scratch: Path) -> Path:
        fetched.append(jar.artefact)
        return fetch(jar, scratch)

    seen: list[tuple[int, int]] = []
    jars.fetch_all(LOCKED, tmp_path, lambda done, of: seen.append((done, of)), counting)
    assert fetched == ["one"]
    assert seen == [(1, 2), (2, 2)]
    assert (tmp_path / "jars" / "one-1.jar").read_bytes() == CONTENT["one"]


def test_tampered_jar_is_refused_and_not_kept(tmp_path: Path) -> None:
    def tampered(jar: Jar, scratch: Path) -> Path:
        file = fetch(jar, scratch)
        if jar.artefact == "two":
            file.write_bytes(b"second jar with something more")
        return file

    with pytest.raises(StackError, match=r"two-1\.jar was fetched with sha256 .* but jars\.lock has"):
        jars.fetch_all(LOCKED, tmp_path, lambda done, of: None, tampered)
    assert not (tmp_path / "jars" / "two-1.jar").exists()
    assert not [path for path in (tmp_path / "jars").iterdir() if path.name.startswith(".")]
    assert not (tmp_path / "fetched.json").exists()


def test_quick_check_sees_what_is_missing_or_cut_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jars, "committed", lambda: LOCKED)
    assert not jars.installed(tmp_path)
    jars.fetch_all(LOCKED, tmp_path, lambda done, of: None, fetch)
    assert jars.installed(tmp_path)

    file = tmp_path / "jars" / "one-1.jar"
    file.write_bytes(CONTENT["one"][:-1])
    assert not jars.installed(tmp_path)
    file.unlink()
    assert not jars.installed(tmp_path)

    jars.fetch_all(LOCKED, tmp_path, lambda done, of: None, fetch)
    assert jars.installed(tmp_path)
    monkeypatch.setattr(jars, "committed", lambda: LOCKED[:1])
    assert not jars.installed(tmp_path)  # another lock's jars


def test_what_cannot_be_fetched_is_named_with_what_to_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from jgo.maven import Artifact

    def unreachable(self: object) -> Path:
        raise OSError("no route to host")

    monkeypatch.setattr(Artifact, "resolve", unreachable)
    monkeypatch.setattr(jars.time, "sleep", lambda seconds: None)
    with pytest.raises(StackError, match=r"one-1\.jar cannot be fetched .*no route to host.*REQUESTS_CA_BUNDLE"):
        jars.fetch_all(LOCKED[:1], tmp_path, lambda done, of: None)

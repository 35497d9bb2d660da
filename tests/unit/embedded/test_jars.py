"""Kafka's jars are fetched and checked against the lock. No test uses the network."""

import hashlib
from pathlib import Path

import pytest

from stepstream.embedded import jars
from stepstream.embedded.errors import StackError
from stepstream.embedded.jar_lock import Jar

CONTENT = {"one": b"first jar", "two": b"second jar"}
LOCKED = tuple(Jar("g", name, "1", hashlib.sha256(content).hexdigest()) for name, content in CONTENT.items())


def fetch(jar: Jar, scratch: Path) -> Path:
    file = scratch / "download"
    file.write_bytes(CONTENT[jar.artefact])
    return file


def test_only_missing_and_altered_jars_are_fetched(tmp_path: Path) -> None:
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / "one-1.jar").write_bytes(b"damaged")
    (tmp_path / "jars" / "two-1.jar").write_bytes(CONTENT["two"])
    fetched = []

    def counting(jar: Jar, scratch: Path) -> Path:
        fetched.append(jar.artefact)
        return fetch(jar, scratch)

    seen: list[tuple[int, int]] = []
    jars.fetch_all(LOCKED, tmp_path, lambda done, total: seen.append((done, total)), counting)
    assert fetched == ["one"]
    assert seen == [(1, 2), (2, 2)]
    assert (tmp_path / "jars" / "one-1.jar").read_bytes() == CONTENT["one"]


def test_a_tampered_jar_raises_and_leaves_no_file(tmp_path: Path) -> None:
    def tampered(jar: Jar, scratch: Path) -> Path:
        file = fetch(jar, scratch)
        if jar.artefact == "two":
            file.write_bytes(b"second jar with something more")
        return file

    with pytest.raises(StackError, match=r"two-1\.jar was fetched with sha256 .* but jars\.lock has"):
        jars.fetch_all(LOCKED, tmp_path, lambda done, total: None, tampered)
    assert not (tmp_path / "jars" / "two-1.jar").exists()
    assert not [path for path in (tmp_path / "jars").iterdir() if path.name.startswith(".")]
    assert not (tmp_path / "fetched.json").exists()


def test_installed_notices_missing_truncated_and_relocked_jars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jars, "committed", lambda: LOCKED)
    assert not jars.installed(tmp_path)
    jars.fetch_all(LOCKED, tmp_path, lambda done, total: None, fetch)
    assert jars.installed(tmp_path)

    file = tmp_path / "jars" / "one-1.jar"
    file.write_bytes(CONTENT["one"][:-1])
    assert not jars.installed(tmp_path)
    file.unlink()
    assert not jars.installed(tmp_path)

    jars.fetch_all(LOCKED, tmp_path, lambda done, total: None, fetch)
    assert jars.installed(tmp_path)
    monkeypatch.setattr(jars, "committed", lambda: LOCKED[:1])
    assert not jars.installed(tmp_path)  # another lock's jars


def test_the_error_for_a_failed_download_names_the_jar_and_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from jgo.maven import Artifact

    def unreachable(self: object) -> Path:
        raise OSError("no route to host")

    monkeypatch.setattr(Artifact, "resolve", unreachable)
    monkeypatch.setattr("stepstream.embedded.jars.time.sleep", lambda seconds: None)
    with pytest.raises(StackError, match=r"one-1\.jar cannot be fetched .*no route to host.*REQUESTS_CA_BUNDLE"):
        jars.fetch_all(LOCKED[:1], tmp_path, lambda done, total: None)

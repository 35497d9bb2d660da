"""Check that versions are published to an S3 server, fetched from it, and rejected or removed there as on a disk."""

import hashlib
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import s3fs
import torch
from s3_server import BUCKET, SECRET, S3Server
from stack_fixtures import with_settings
from version_lineage import Lineage, published_weights

from stepstream.config import Settings
from stepstream.core.object_store import open_file, remove, upload
from stepstream.crypto.content_store import ContentStore
from stepstream.jobs.erasure.content_objects import remove_objects
from stepstream.jobs.runtime.log_reader import Committed
from stepstream.jobs.runtime.snapshot_manifest import SnapshotRefused
from stepstream.jobs.runtime.snapshot_store import GRACE_MS, SnapshotStore
from stepstream.topics.codec import ContentUnavailable, Malformed, MissingContent
from stepstream.topics.events import Checkpoint, new_checkpoint, new_checkpoint_file
from stepstream.versions.fetch import fetch_adapter, fetch_version
from stepstream.versions.layout import VersionRejected
from stepstream.versions.retention import removals_of

FILES = ("weights/config.json", "weights/model.safetensors", "weights/tokenizer.json", "training/optimizer.safetensors")
WEIGHTS = FILES[1]
WRONG_SECRET = "a-mistyped-secret-that-no-message-may-show"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with S3Server(tmp_path_factory.mktemp("s3") / "server") as started:
        yield started


@pytest.fixture(autouse=True)
def environment(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """The process's environment with the server's credentials, and without what the machine's user configured."""
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, "/dev/null")
    use(monkeypatch, server.environment())
    yield monkeypatch
    s3fs.S3FileSystem.clear_instance_cache()


def use(environment: pytest.MonkeyPatch, variables: dict[str, str]) -> None:
    """Give the process other credentials, as if it had started with them."""
    for name, value in variables.items():
        environment.setenv(name, value)
    s3fs.S3FileSystem.clear_instance_cache()


def published(folder: Path, prefix: str, version: int = 3) -> Checkpoint:
    """Upload small files and return their event."""
    files = []
    for name in FILES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        content = f"{prefix} {version} {name}".encode() * 10
        (folder / name).write_bytes(content)
        files.append(
            new_checkpoint_file(path=name, sha256=hashlib.sha256(content).hexdigest(), size_bytes=len(content))
        )
    uri = f"s3://{BUCKET}/{prefix}/m/{version}"
    upload(folder, uri)
    return new_checkpoint(
        event_id=f"{prefix}-{version}", occurred_at_us=0, model="m", version=version, uri=uri, weights_sha256="",
        files=files, code_version="",
    )  # fmt: skip


def fetch(checkpoint: Checkpoint, cache_folder: Path) -> Path:
    return fetch_version(checkpoint, lambda _model, _version: None, cache_folder)


def object_of(checkpoint: Checkpoint, path: str) -> str:
    return f"{checkpoint['uri'].removeprefix('s3://')}/{path}"


def files_below(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


FORMS: list[tuple[str, dict[str, Any]]] = [("full", {}), ("delta", {"full_every": 3}), ("lora", {"lora_rank": 2})]


@pytest.mark.parametrize(("form", "fields"), FORMS)
def test_each_form_is_served_and_resumed_from_s3(
    form: str, fields: dict[str, Any], server: S3Server, tmp_path: Path
) -> None:
    fields = {**fields, "version_format": form, "checkpoints": f"s3://{BUCKET}/{form}"}
    learner = Lineage(tmp_path / "learner", root_in_store=True, **fields)
    first, second = learner.publish(), learner.publish()
    assert (first["format"], second["format"]) == (form, form)
    in_store = set(server.client().find(f"{BUCKET}/{form}"))
    for checkpoint in (learner.versions.by_model["m"][0], first, second):
        assert checkpoint["uri"].startswith(f"s3://{BUCKET}/{form}/m/{checkpoint['version']}-")
        assert {object_of(checkpoint, file["path"]) for file in checkpoint["files"]} <= in_store

    found = learner.served(second, tmp_path / "worker")
    weights = published_weights(learner.trainer)
    for name, value in found.items():
        torch.testing.assert_close(value, weights[name].bfloat16(), atol=0, rtol=0 if form != "lora" else 1e-2)
    assert not list((tmp_path / "worker").rglob("optimizer*")), "a worker does not download the training state"
    if form == "lora":
        base, adapter = fetch_adapter(second, learner.versions.find, tmp_path / "worker")
        assert (base / "model.safetensors").is_file()
        assert (adapter / "adapter_model.safetensors").is_file()

    resumed = Lineage(tmp_path / "other machine", **{**fields, "checkpoints": f"s3://{BUCKET}/{form}-resumed"})
    for checkpoint in learner.versions.by_model["m"].values():
        resumed.versions.fold(checkpoint)
    resumed.start(second)
    assert resumed.publish()["weights_sha256"] == learner.publish()["weights_sha256"]


def test_a_worker_reads_only_its_roles_and_a_broken_download_goes_on(server: S3Server, tmp_path: Path) -> None:
    checkpoint = published(tmp_path / "m", "resume")
    client = server.client()
    client.rm(object_of(checkpoint, "training"), recursive=True)
    client.rm(object_of(checkpoint, WEIGHTS))
    with pytest.raises(VersionRejected, match=rf"m@3: s3://{BUCKET}/resume/m/3/{WEIGHTS} cannot be read"):
        fetch(checkpoint, tmp_path / "cache")
    assert files_below(tmp_path / "cache") == ["config.json"]

    client.put_file(str(tmp_path / "m" / WEIGHTS), object_of(checkpoint, WEIGHTS))
    client.rm(object_of(checkpoint, FILES[0]))
    folder = fetch(checkpoint, tmp_path / "cache")
    assert files_below(folder) == ["config.json", "model.safetensors", "tokenizer.json"]
    assert (folder / "model.safetensors").read_bytes() == (tmp_path / "m" / WEIGHTS).read_bytes()


def test_a_cut_or_corrupt_object_is_rejected(server: S3Server, tmp_path: Path) -> None:
    checkpoint = published(tmp_path / "m", "damaged")
    content = (tmp_path / "m" / WEIGHTS).read_bytes()
    for damaged in (content[:-1], content[:-1] + b"\1", b""):
        server.client().pipe_file(object_of(checkpoint, WEIGHTS), damaged)
        with pytest.raises(VersionRejected, match=r"m@3: weights/model\.safetensors has sha256 .*, its event has"):
            fetch(checkpoint, tmp_path / "cache")
        assert "model.safetensors" not in files_below(tmp_path / "cache")
    server.client().pipe_file(object_of(checkpoint, WEIGHTS), content)
    fetch(checkpoint, tmp_path / "cache")


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"secret": WRONG_SECRET}, "the store rejects this process's credentials"),
        ({"key": "nobody"}, "the store rejects this process's credentials"),
        ({"key": "", "secret": ""}, r"NoCredentialsError"),
        ({"url": "http://127.0.0.1:1"}, r'Could not connect to the endpoint URL: "http://127\.0\.0\.1:1/'),
    ],
    ids=["wrong secret", "unknown key", "no credentials", "no server"],
)
def test_a_store_that_refuses_is_reported_without_the_secret(
    wrong: dict[str, str],
    reason: str,
    server: S3Server,
    environment: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    checkpoint = published(tmp_path / "m", "refused")
    learner = Lineage(tmp_path / "learner", checkpoints=f"s3://{BUCKET}/refused-too")
    use(environment, server.environment(**wrong))
    if not wrong.get("key", "set"):
        environment.delenv("AWS_ACCESS_KEY_ID")
        environment.delenv("AWS_SECRET_ACCESS_KEY")
    with caplog.at_level("DEBUG", "stepstream"):
        with pytest.raises(VersionRejected, match=rf"m@3: s3://.*/config\.json cannot be read: .*{reason}") as fetched:
            fetch(checkpoint, tmp_path / "cache")
        with pytest.raises(OSError, match=rf"learner\.checkpoints: s3://.* cannot be written.*: .*{reason}") as stopped:
            learner.publish()
        with pytest.raises(OSError, match=reason) as kept:
            remove(checkpoint["uri"])
    assert learner.log.sent == []
    for error in (fetched.value, stopped.value, kept.value):
        text = "".join(traceback.format_exception(error)) + caplog.text
        assert SECRET not in text
        assert WRONG_SECRET not in text


def test_a_mistyped_bucket_is_not_created(server: S3Server, environment: pytest.MonkeyPatch, tmp_path: Path) -> None:
    published(tmp_path / "m", "mistyped")
    # S3Proxy names a location for each bucket, from which the client concludes that it exists; AWS does not.
    environment.setattr(s3fs.S3FileSystem, "makedirs", lambda *_, **__: pytest.fail("on AWS this creates the bucket"))
    with pytest.raises(FileNotFoundError, match="bucket does not exist"):
        upload(tmp_path / "m", "s3://modles/m/3")
    assert server.client().ls("") == [BUCKET]


def test_a_file_in_several_parts_is_uploaded_and_read_whole(server: S3Server, tmp_path: Path) -> None:
    shard = tmp_path / "m/weights/model.safetensors"
    shard.parent.mkdir(parents=True)
    with shard.open("wb") as out:
        out.truncate(101 << 20)  # the client sends more than 100 MiB in parts
        out.write(b"first")
        out.seek(-4, 2)
        out.write(b"last")
    uri = f"s3://{BUCKET}/parts/m/1"
    upload(tmp_path / "m", uri)
    assert server.client().info(f"{BUCKET}/parts/m/1/{WEIGHTS}")["ETag"].endswith('-3"')
    with open_file(uri, WEIGHTS) as stream:
        assert stream.read() == shard.read_bytes()
    remove(uri)


def test_a_snapshot_of_state_is_stored_refused_if_damaged_and_removed(server: S3Server, tmp_path: Path) -> None:
    now_ms = 1_760_000_000_000
    address = f"s3://{BUCKET}/state-snapshots"
    store = SnapshotStore(address, "label", "1", keep=1, cancelled=lambda: False, now_ms=lambda: now_ms)
    contents = ({"000001.sst": b"table", "CURRENT": b"first"}, {"000001.sst": b"table", "CURRENT": b"second"})
    for number, content in enumerate(contents, 1):
        folder = tmp_path / str(number)
        folder.mkdir()
        for name, data in content.items():
            (folder / name).write_bytes(data)
        now_ms += 1
        store.write(folder, "log", 0, {"steps": 10 * number}, ticks=0, written_ms=now_ms)
    assert len(server.client().find(f"{BUCKET}/state-snapshots/label/log/0/files")) == 3, "equal files are stored once"

    other = SnapshotStore(address, "label", "1", keep=1, cancelled=lambda: False, now_ms=lambda: now_ms)
    committed = {"steps": Committed(20, "0")}
    (newest, before), refused = other.usable("log", 0, committed, 0)
    assert (newest.position, before.position, refused) == ({"steps": 20}, {"steps": 10}, [])
    restored = tmp_path / "restored"
    restored.mkdir()
    other.fetch(newest, restored)
    assert {path.name: path.read_bytes() for path in restored.iterdir()} == contents[1]

    now_ms += 2 * GRACE_MS
    other.prune("log", 0)
    assert other.usable("log", 0, committed, 0)[0] == [newest]
    assert len(server.client().find(f"{BUCKET}/state-snapshots/label/log/0/files")) == 2
    for path in server.client().find(f"{BUCKET}/state-snapshots/label/log/0/files"):
        server.client().pipe_file(path, b"damaged")
    with pytest.raises(SnapshotRefused, match="has 7 bytes"):
        other.fetch(newest, restored)


def test_content_of_large_records_is_stored_read_once_and_removed(server: S3Server) -> None:
    settings = with_settings(Settings(), large_records={"store": f"s3://{BUCKET}/large-records"})
    store, content = ContentStore(settings), b"a large answer" * 100_000
    claim = store.write("acme", content)
    assert store.write("acme", content) == claim
    assert server.client().find(f"{BUCKET}/large-records") == [f"{BUCKET}/large-records/{claim['path']}"]
    assert store.read("acme", claim) == content
    with pytest.raises(Malformed, match="not one of its tenant's"):
        store.read("other", claim)

    server.client().pipe_file(f"{BUCKET}/large-records/{claim['path']}", content[:-1] + b"x")
    with pytest.raises(Malformed, match="changed or cut"):
        store.read("acme", claim)
    remove_objects(settings, [claim["path"], claim["path"]])
    assert server.client().find(f"{BUCKET}/large-records") == []
    with pytest.raises(MissingContent):
        store.read("acme", claim)


def test_a_store_of_large_records_that_refuses_makes_them_wait(
    server: S3Server, environment: pytest.MonkeyPatch
) -> None:
    store = ContentStore(with_settings(Settings(), large_records={"store": f"s3://{BUCKET}/refused"}))
    claim = store.write("acme", b"content")
    use(environment, server.environment(secret=WRONG_SECRET))
    for call in (lambda: store.write("acme", b"more"), lambda: store.read("acme", claim)):
        with pytest.raises(ContentUnavailable, match="a large record waits") as raised:
            call()
        assert WRONG_SECRET not in str(raised.value)


def test_retention_removes_the_objects(server: S3Server, tmp_path: Path) -> None:
    versions = {number: published(tmp_path / str(number), "retention", number) for number in (1, 10, 11, 12)}
    for number, parent in ((10, 1), (11, 10), (12, 11)):
        versions[number]["parent_version"] = parent
    removals = removals_of(versions, set(), keep_versions=2, keep_training=1)
    assert removals.versions == (10,)
    assert removals.training == (1, 11)
    for number in removals.versions:
        remove(versions[number]["uri"])
    for number in removals.training:
        remove(versions[number]["uri"], "training")
    left = set(server.client().find(f"{BUCKET}/retention"))
    whole, served = set(FILES), set(FILES[:3])
    assert left == {
        object_of(versions[number], path)
        for number, paths in ((1, served), (11, served), (12, whole))
        for path in paths
    }
    with pytest.raises(VersionRejected, match=r"m@10: .* cannot be read"):
        fetch(versions[10], tmp_path / "cache")
    remove(versions[10]["uri"])

"""Check that versions in each form are published, fetched, resumed from and described alike."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from version_lineage import Lineage, published_weights

from stepstream.core.object_store import remove
from stepstream.core.process import Fatal
from stepstream.crypto.signatures import create_key
from stepstream.learner.model.checkpoint import describe
from stepstream.learner.publish import prune_version_cache
from stepstream.learner.rebuild import rebuild_from
from stepstream.versions import delta
from stepstream.versions.fetch import fetch_adapter, fetch_version
from stepstream.versions.layout import weights_sha256
from stepstream.versions.retention import removal_events, removals_of

FORMS = [
    ("full", {}, ["full"] * 4),
    ("delta", {"full_every": 3}, ["delta", "delta", "full", "delta"]),
    ("lora", {"lora_rank": 2}, ["lora"] * 4),
    ("lora", {}, ["full"] * 4),
]


@pytest.mark.parametrize(("form", "fields", "expected"), FORMS)
@pytest.mark.parametrize("store", ["folder", "memory"])
def test_each_form_is_resumed_from_bit_for_bit_and_serves_the_learner_s_weights(
    form: str, fields: dict[str, Any], expected: list[str], store: str, tmp_path: Path
) -> None:
    if store == "memory":
        fields = {**fields, "checkpoints": f"memory://{tmp_path.name}-{form}/versions"}
    straight = Lineage(tmp_path / "straight", version_format=form, **fields)
    published = []
    for _ in range(4):
        published.append(straight.publish())
        found = straight.served(published[-1], tmp_path / "worker")
        weights = published_weights(straight.trainer)
        for name, value in found.items():
            torch.testing.assert_close(value, weights[name].bfloat16(), atol=0, rtol=0 if form != "lora" else 1e-2)
    assert [checkpoint["format"] for checkpoint in published] == expected
    assert published == straight.log.sent
    names = {Path(file["path"]) for checkpoint in published for file in checkpoint["files"]}
    suffixes = {name.suffix for name in names if name.name != delta.DATA}
    assert suffixes <= {".json", ".jinja", ".safetensors"}, "no pickle"
    for checkpoint in published[1:3]:
        assert rebuild_from(straight.versions, checkpoint, lambda _positions: straight.records).equal
    remove(published[1]["uri"])
    assert rebuild_from(straight.versions, published[2], lambda _positions: straight.records).equal
    resumed_from = published[2]

    resumed = Lineage(tmp_path / "resumed", version_format=form, **fields)
    for checkpoint in straight.versions.by_model["m"].values():
        resumed.versions.fold(checkpoint)
    resumed.start(resumed_from)
    for checkpoint in published[3:]:
        assert resumed.publish()["weights_sha256"] == checkpoint["weights_sha256"]


def test_a_delta_s_digest_is_that_of_all_its_weights(tmp_path: Path) -> None:
    lineage = Lineage(tmp_path, version_format="delta")
    delta = lineage.publish()
    assert delta["base_version"] == 0
    folder = fetch_version(delta, lineage.versions.find, tmp_path / "worker")
    assert weights_sha256(describe(folder)) == delta["weights_sha256"]
    sizes = {file["path"]: file["size_bytes"] for file in delta["files"]}
    assert "weights/model.safetensors" not in sizes
    assert sizes["weights/delta.bin"] < (folder / "model.safetensors").stat().st_size
    lineage.publish()
    kept = list((tmp_path / "data/version-cache/learner/complete/m").iterdir())
    assert len(kept) == 1, "only the version that the next delta is made from is kept"


def test_a_version_after_some_that_were_taken_back_needs_none_that_a_removal_meanwhile_takes(tmp_path: Path) -> None:
    lineage = Lineage(tmp_path, version_format="delta", full_every=3)
    first, *_ = [lineage.publish() for _ in range(4)]
    lineage.start(first)  # versions 2 to 4 were taken back
    # `models prune` reads the log before the next version is on it, when no decision names version 1 any more.
    seen = dict(lineage.versions.by_model["m"])
    removals = removals_of(seen, (), keep_versions=1, keep_training=0)
    assert removals.versions == (1, 2)
    after = lineage.publish(number=5)
    assert (after["version"], after["parent_version"]) == (5, 1)
    for gone, _ in removal_events(seen, removals, now_us=1):
        lineage.versions.fold(gone)
        remove(gone["uri"])
    served = lineage.served(after, tmp_path / "worker")
    assert weights_sha256(describe(lineage.folder)) == after["weights_sha256"]
    assert set(served) == set(published_weights(lineage.trainer))
    assert [lineage.publish()["base_version"] for _ in range(2)] == [None, 6]


@pytest.mark.parametrize("form", ["full", "delta"])
def test_a_store_s_versions_leave_one_local_copy_for_the_next(form: str, tmp_path: Path) -> None:
    lineage = Lineage(tmp_path, version_format=form, checkpoints=f"memory://{tmp_path.name}-{form}/staged")
    for _ in range(3):
        lineage.publish()
    cache = tmp_path / "data/version-cache/learner"
    assert [path for path in cache.glob("*/m/*") if path.parent.parent.name in ("upload", "complete")] == [
        lineage.folder
    ]


def test_a_store_s_versions_of_a_model_whose_name_has_a_slash_leave_one_local_copy_too(tmp_path: Path) -> None:
    lineage = Lineage(tmp_path, checkpoints=f"memory://{tmp_path.name}-slash/staged")
    lineage.base["model"] = "org/name"
    for _ in range(3):
        lineage.publish()
    assert list((tmp_path / "data/version-cache/learner/upload/org/name").glob("[0-9]*")) == [lineage.folder]


def test_the_cache_of_versions_stays_below_its_limit_and_keeps_what_is_used(tmp_path: Path) -> None:
    lineage = Lineage(
        tmp_path, version_format="delta", checkpoints=f"memory://{tmp_path.name}/limit", version_cache_bytes=0
    )
    versions = [lineage.publish() for _ in range(3)]
    cache = tmp_path / "data/version-cache/learner"
    lineage.start(versions[1])
    used = lineage.folder
    lineage.start(versions[2])
    assert used.is_dir()
    prune_version_cache(lineage.settings, [lineage.folder])
    assert not used.exists()
    for link in (path for path in lineage.folder.rglob("*") if path.is_symlink()):
        assert link.exists(), "what a folder in use links to stays"
    assert {path.name.split("-")[0] for path in (cache / "m").iterdir()} == {"3"}
    lineage.publish()


def test_adapters_alone_are_published_with_their_base(tmp_path: Path) -> None:
    lineage = Lineage(tmp_path, version_format="lora", lora_rank=2)
    lineage.publish()
    version = lineage.publish()
    paths = {file["path"] for file in version["files"]}
    assert {"weights/adapter/adapter_model.safetensors", "weights/adapter/adapter_config.json"} < paths
    assert not any(path.endswith("/model.safetensors") for path in paths)
    assert version["base_version"] == 0
    base, adapter = fetch_adapter(version, lineage.versions.find, tmp_path / "worker")
    assert base == tmp_path / "root/weights"
    assert all(value.dtype == torch.float32 for value in load_file(adapter / "adapter_model.safetensors").values())


def test_versions_are_signed_and_a_file_without_a_key_stops_the_learner(tmp_path: Path) -> None:
    key = create_key(tmp_path / "key.pem")
    lineage = Lineage(tmp_path / "signed", signing_key=str(tmp_path / "key.pem"))
    version = lineage.publish()
    fetch_version(version, lineage.versions.find, tmp_path / "worker", trusted_keys=[key])
    (tmp_path / "key.pem").write_text("nothing")
    with pytest.raises(Fatal, match=r"learner\.signing_key: .*key\.pem has no private key"):
        lineage.publish()

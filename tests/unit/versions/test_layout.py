"""Check the roles, the safe names, the index and the digest of a version's files."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file

from stepstream.topics.events import CheckpointFile, new_checkpoint_file
from stepstream.versions.layout import (
    index_of,
    indexed_files,
    is_safe,
    read_name,
    role_of,
    role_of_path,
    weights_sha256,
)
from stepstream.versions.updates import ModelUpdates


@pytest.mark.parametrize(
    ("path", "role"),
    [
        ("weights/model.safetensors", "weights"),
        ("weights/model-00001-of-00002.safetensors", "weights"),
        ("weights/model.safetensors.index.json", "weights"),
        ("weights/config.json", "config"),
        ("weights/generation_config.json", "config"),
        ("weights/tokenizer.json", "tokenizer"),
        ("weights/special_tokens_map.json", "tokenizer"),
        ("weights/chat_template.jinja", "tokenizer"),
        ("weights/additional_chat_templates/tool_use.jinja", "tokenizer"),
        ("weights/merges.txt", "tokenizer"),
        ("weights/tokenizer.model", "tokenizer"),
        ("weights/adapter/adapter_model.safetensors", "adapter"),
        ("weights/adapter/adapter_config.json", "adapter"),
        ("weights/delta.json", "delta"),
        ("training/optimizer.safetensors", "training"),
        ("training/base/model.safetensors", "training"),
        # The layout of before.
        ("model.safetensors", "weights"),
        ("tokenizer.json", "tokenizer"),
        ("optimizer.safetensors", "training"),
        ("critic.safetensors", "training"),
        ("adapter/adapter_model.safetensors", "training"),
        ("base/model.safetensors", "training"),
    ],
)
def test_the_role_follows_from_the_name(path: str, role: str) -> None:
    assert role_of_path(path) == role
    assert role_of(new_checkpoint_file(path=path, sha256="", size_bytes=0)) == role
    assert role_of(new_checkpoint_file(path=path, sha256="", size_bytes=0, role="delta")) == "delta"


@pytest.mark.parametrize(
    "path", ["", "/etc/passwd", "../x", "a/../x", "a/./x", "a//x", "a/", "a\\..\\x", "C:\\x", "c:x", "a\0b", "."]
)
def test_a_name_that_leaves_the_folder_is_unsafe(path: str) -> None:
    assert not is_safe(path)


@pytest.mark.parametrize("name", ["m", "m@", "@3", "m@-1", "m@\u00b2", "m@" + "9" * 5000, "m@3 ", ""])
def test_a_name_of_another_form_is_no_version(name: str) -> None:
    """A deleted key of another form would else stop every reader of the topic."""
    assert read_name(name) is None
    assert list(ModelUpdates().checkpoint(name, None)) == []
    assert read_name("a@b@12") == ("a@b", 12)


@given(st.lists(st.text(st.characters(codec="utf-8"), min_size=1), min_size=1))
def test_a_safe_name_stays_below_the_folder(parts: list[str]) -> None:
    path = "/".join(parts)
    if is_safe(path):
        below = (Path("/a/b") / path).relative_to("/a/b")
        assert ".." not in below.parts
        assert below.as_posix() == path


def weights(*digests: str, prefix: str = "weights/") -> list[CheckpointFile]:
    return [
        new_checkpoint_file(path=f"{prefix}model-{number}.safetensors", sha256=digest, size_bytes=1)
        for number, digest in enumerate(digests)
    ]


def test_the_digest_of_several_files_depends_on_each_of_them() -> None:
    assert weights_sha256(weights("aa")) == "aa"
    both = weights_sha256(weights("aa", "bb"))
    assert weights_sha256(weights("aa", "bb", prefix="")) == both
    assert len({both, weights_sha256(weights("bb", "aa")), weights_sha256(weights("aa", "bc"))}) == 3
    rest = new_checkpoint_file(path="training/optimizer.safetensors", sha256="cc", size_bytes=1)
    assert weights_sha256([*weights("aa", "bb"), rest]) == both


def test_the_index_names_the_file_of_each_tensor(tmp_path: Path) -> None:
    assert indexed_files(tmp_path) == []
    save_file({"b": np.zeros(3, np.float32)}, tmp_path / "model-2.safetensors")
    save_file({"a": np.zeros((2, 2), np.float16), "c": np.zeros(1, np.int8)}, tmp_path / "model-1.safetensors")
    content = index_of(tmp_path.glob("*.safetensors"))
    assert json.loads(content) == {
        "metadata": {"total_size": 12 + 8 + 1},
        "weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors", "c": "model-1.safetensors"},
    }
    (tmp_path / "model.safetensors.index.json").write_bytes(content)
    assert indexed_files(tmp_path) == ["model-1.safetensors", "model-2.safetensors"]


@pytest.mark.parametrize("name", ["../other.safetensors", "/etc/passwd", "a/b.safetensors", "..", "", 7])
def test_an_index_that_names_a_file_elsewhere_is_malformed(tmp_path: Path, name: object) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"x": name}}))
    with pytest.raises((ValueError, TypeError, AttributeError)):
        indexed_files(tmp_path)

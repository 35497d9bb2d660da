"""Test compression: round trips in pieces of any size, and broken bodies."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepstream.services.store.codecs import SUPPORTED, Pack, Unpack, choose_encoding
from stepstream.services.store.errors import StoreError

PIECES = st.lists(st.binary(max_size=200), max_size=6)


def pack(encoding: str, pieces: list[bytes]) -> bytes:
    packer = Pack(encoding)
    return b"".join(packer.feed(piece) for piece in pieces) + packer.finish()


@given(st.sampled_from(SUPPORTED), st.lists(PIECES, min_size=1, max_size=3), st.integers(1, 50))
def test_compressed_frames_decompress_to_the_data(encoding: str, frames: list[list[bytes]], size: int) -> None:
    """Several consecutive frames, read in pieces of any size."""
    packed = b"".join(pack(encoding, pieces) for pieces in frames)
    unpack = Unpack(encoding)
    plain = b"".join(unpack.feed(packed[at : at + size]) for at in range(0, len(packed), size))
    unpack.finish()
    assert plain == b"".join(b"".join(pieces) for pieces in frames)


@pytest.mark.parametrize("encoding", SUPPORTED)
def test_a_truncated_body_is_rejected(encoding: str) -> None:
    packed = pack(encoding, [bytes(range(256)) * 20])
    unpack = Unpack(encoding)
    unpack.feed(packed[: len(packed) // 2])
    with pytest.raises(StoreError, match="too early"):
        unpack.finish()


@pytest.mark.parametrize("encoding", SUPPORTED)
def test_bytes_of_another_encoding_are_rejected(encoding: str) -> None:
    with pytest.raises(StoreError, match="cannot be decompressed"):
        Unpack(encoding).feed(b"SELECT 1 is plain text, not packed")


def test_the_error_names_an_unknown_encoding() -> None:
    with pytest.raises(StoreError, match="'br'"):
        Unpack("br")


@pytest.mark.parametrize(
    ("header", "encoding"),
    [("lz4,zstd,gzip", "lz4"), ("br, gzip;q=0.5", "gzip"), ("identity", None), ("", None), ("GZIP", "gzip")],
)
def test_the_first_supported_encoding_is_chosen(header: str, encoding: str | None) -> None:
    assert choose_encoding(header) == encoding

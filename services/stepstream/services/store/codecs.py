"""Compress and decompress HTTP bodies piece by piece: gzip, deflate, lz4 and zstd."""

import zlib
from collections.abc import Callable
from typing import Any, Protocol

import lz4.frame
import zstandard

from stepstream.services.store.errors import BAD_ARGUMENTS, StoreError


class _Unpacker(Protocol):
    @property
    def unused_data(self) -> bytes | None: ...
    @property
    def eof(self) -> bool: ...
    def decompress(self, data: bytes) -> bytes: ...


_UNPACK: dict[str, Callable[[], Any]] = {
    "gzip": lambda: zlib.decompressobj(16 + zlib.MAX_WBITS),
    "deflate": zlib.decompressobj,
    "lz4": lz4.frame.LZ4FrameDecompressor,
    "zstd": lambda: zstandard.ZstdDecompressor().decompressobj(),
}
SUPPORTED = tuple(_UNPACK)


class Unpack:
    """Decompresses a body of one or several frames; clients that compress block by block send several."""

    def __init__(self, encoding: str) -> None:
        """Set the Content-Encoding; empty or `identity`: the body is not compressed."""
        if encoding and encoding != "identity" and encoding not in _UNPACK:
            raise StoreError(
                BAD_ARGUMENTS, f"Content-Encoding '{encoding}' is not supported: send {', '.join(SUPPORTED)} or none"
            )
        self._new = _UNPACK.get(encoding)
        self._frame: _Unpacker | None = None

    def feed(self, data: bytes) -> bytes:
        """Return the decompressed part of `data` that is complete.

        Raises:
            StoreError: the bytes do not have that encoding.
        """
        if self._new is None or not data:
            return data
        pieces = []
        try:
            while data:
                frame = self._frame or self._new()
                pieces.append(frame.decompress(data))
                data = (frame.unused_data or b"") if frame.eof else b""
                self._frame = None if frame.eof else frame
        except (zlib.error, RuntimeError, zstandard.ZstdError) as error:
            raise StoreError(BAD_ARGUMENTS, f"the request's body cannot be decompressed: {error}") from None
        return b"".join(pieces)

    def finish(self) -> None:
        """Check the end of the body.

        Raises:
            StoreError: the body ended inside a frame.
        """
        if self._frame is not None:
            raise StoreError(BAD_ARGUMENTS, "the request's compressed body ended too early")


class Pack:
    """Compresses a response; `encoding` is one of `SUPPORTED`."""

    def __init__(self, encoding: str) -> None:
        self._head = b""
        self._feed: Callable[[bytes], bytes]
        self._end: Callable[[], bytes]
        if encoding in {"gzip", "deflate"}:
            bits = zlib.MAX_WBITS + (16 if encoding == "gzip" else 0)
            packer = zlib.compressobj(level=1, wbits=bits)
            self._feed, self._end = packer.compress, packer.flush
        elif encoding == "lz4":
            frame = lz4.frame.LZ4FrameCompressor()
            self._head = frame.begin()
            self._feed, self._end = frame.compress, frame.flush
        else:
            stream = zstandard.ZstdCompressor(level=1).compressobj()
            self._feed, self._end = stream.compress, stream.flush

    def feed(self, data: bytes) -> bytes:
        """Add data; return the bytes to send now, often none."""
        head, self._head = self._head, b""
        return head + self._feed(data)

    def finish(self) -> bytes:
        """Return the end of the frame."""
        head, self._head = self._head, b""
        return head + self._end()


def choose_encoding(accept_encoding: str) -> str | None:
    """Return the first supported encoding of an Accept-Encoding header; None: send uncompressed."""
    for part in accept_encoding.lower().split(","):
        name = part.split(";")[0].strip()
        if name in _UNPACK:
            return name
    return None

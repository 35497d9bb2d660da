"""Build HTTP replies: ClickHouse's headers, compression, and errors before or inside a body."""

import json
import secrets
from collections.abc import AsyncIterator

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from stepstream.services.store.codecs import Pack
from stepstream.services.store.engine import Result
from stepstream.services.store.errors import StoreError
from stepstream.services.store.request import Request
from stepstream.services.store.run import Answer

_CONTENT_TYPES = {
    "CSV": "text/csv; charset=UTF-8; header=absent",
    "CSVWithNames": "text/csv; charset=UTF-8; header=present",
    "JSON": "application/json; charset=UTF-8",
    "JSONCompact": "application/json; charset=UTF-8",
    "JSONEachRow": "application/x-ndjson; charset=UTF-8",
    "TabSeparated": "text/tab-separated-values; charset=UTF-8",
    "TabSeparatedWithNamesAndTypes": "text/tab-separated-values; charset=UTF-8",
}


def reply(request: Request, answer: Answer, timezone: str) -> Response:
    """Build the reply to a query that has ended or returned its first block."""
    headers = {
        "X-ClickHouse-Query-Id": request.query_id,
        "X-ClickHouse-Format": answer.format,
        "X-ClickHouse-Timezone": timezone,
        "X-ClickHouse-Server-Display-Name": "stepstream-store",
        "X-ClickHouse-Summary": json.dumps(_summary(answer.result)),
        "Content-Type": _CONTENT_TYPES.get(answer.format, "application/octet-stream"),
    }
    pack = Pack(request.reply_encoding) if request.reply_encoding else None
    if request.reply_encoding:
        headers["Content-Encoding"] = request.reply_encoding
    body = answer.result.body
    if answer.more is not None:
        return StreamReply(body, answer.more, pack, headers)
    return Response(pack.feed(body) + pack.finish() if pack else body, headers=headers)


def error_reply(error: StoreError, query_id: str = "") -> Response:
    """Build the reply to a request that failed before its first row."""
    headers = {
        "X-ClickHouse-Exception-Code": str(error.code),
        "X-ClickHouse-Query-Id": query_id,
        "Content-Type": "text/plain; charset=UTF-8",
    }
    return Response(str(error).encode("utf-8", "surrogateescape"), error.status, headers)


def _summary(result: Result) -> dict[str, str]:
    counts = {
        "read_rows": result.read_rows,
        "read_bytes": result.read_bytes,
        "written_rows": result.written_rows,
        "written_bytes": result.written_bytes,
        "total_rows_to_read": 0,
        "result_rows": result.result_rows,
        "result_bytes": len(result.body),
        "elapsed_ns": int(result.elapsed_s * 1e9),
    }
    return {name: str(value) for name, value in counts.items()}


class StreamReply(Response):
    """A body sent block by block.

    A query that fails midway ends as in ClickHouse: the exception between marks with the tag of the
    X-ClickHouse-Exception-Tag header, then a closed connection without the body's last chunk.
    """

    def __init__(self, first: bytes, more: AsyncIterator[bytes], pack: Pack | None, headers: dict[str, str]) -> None:
        self._tag = secrets.token_hex(8)
        super().__init__(headers=headers | {"X-ClickHouse-Exception-Tag": self._tag})
        del self.headers["content-length"]
        self._first = first
        self._more = more
        self._pack = pack

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the body; the query ends if the client closes the connection."""
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        try:
            await self._send(send, self._first)
            async for block in self._more:
                await self._send(send, block)
        except StoreError as error:
            await self._send(send, self._error_bytes(error), last=True)
            return
        finally:
            await self._more.aclose()  # type: ignore[attr-defined]
        await send({"type": "http.response.body", "body": self._pack.finish() if self._pack else b""})

    async def _send(self, send: Send, block: bytes, *, last: bool = False) -> None:
        packed = self._pack.feed(block) + (self._pack.finish() if last else b"") if self._pack else block
        if packed:
            await send({"type": "http.response.body", "body": packed, "more_body": True})

    def _error_bytes(self, error: StoreError) -> bytes:
        text = str(error).encode("utf-8", "surrogateescape")
        tag = self._tag.encode()
        end = b"%d %s\r\n__exception__\r\n" % (len(text), tag)
        return b"\r\n__exception__\r\n" + tag + b"\r\n" + text + end

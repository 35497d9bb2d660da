"""Fuzz the store's front: it reads every request, statement and compressed body, or refuses them."""

import random
import zlib
from collections.abc import Callable
from typing import Any

from fuzzing import fuzz, refused
from mutations import mutated, mutated_bytes

from stepstream.services.store.codecs import Unpack
from stepstream.services.store.errors import StoreError
from stepstream.services.store.request import Account, authenticate, read_request
from stepstream.services.store.statement import needs_more, parse

ACCOUNTS = [Account("default", "secret", reads_only=False)]
STATEMENTS = [
    b"SELECT * FROM steps WHERE a = 'x''y' AND b IN (1, 2) -- c\n FORMAT JSONEachRow",
    b'INSERT INTO steps (a, b) FORMAT JSONEachRow\n{"a": 1}',
    b"INSERT INTO t VALUES (1, 'x'), (2, \"y\")",
    b"WITH 1 AS x SELECT {p:String} /* c */ ; ",
]
HEADERS = {"authorization": "Basic ZGVmYXVsdDpzZWNyZXQ=", "accept-encoding": "gzip;q=0.5, zstd", "x": "y"}
PARAMS = {"query": "SELECT 1", "session_id": "s", "session_timeout": "5", "param_x": "1", "database": "d"}


def test_the_store_reads_any_request_and_statement() -> None:
    def target(rng: random.Random) -> None:
        statement = mutated_bytes(rng.choice(STATEMENTS), rng)
        params, headers = as_texts(mutated([PARAMS], rng)), as_texts(mutated([HEADERS], rng))
        calls: list[Callable[[], object]] = [
            lambda: read_request(params, headers),
            lambda: authenticate(params, headers, ACCOUNTS),
            lambda: parse(statement),
            lambda: needs_more(statement),
            lambda: unpack(rng.choice(("gzip", "deflate", "zstd", "br", "")), statement),
            lambda: unpack("deflate", mutated_bytes(zlib.compress(statement), rng)),
        ]
        for call in calls:
            try:
                call()
            except StoreError as error:
                refused(error)

    fuzz(target)


def unpack(encoding: str, body: bytes) -> None:
    unpacker = Unpack(encoding)
    unpacker.feed(body)
    unpacker.finish()


def as_texts(document: Any) -> dict[str, str]:
    return {str(name): str(value) for name, value in document.items()} if isinstance(document, dict) else {}

"""Change valid documents at random: other values, missing and repeated fields, deep nesting, broken bytes."""

import copy
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import orjson

VALUES: Sequence[Any] = (
    None, True, False, 0, -1, 1, 2**31, 2**53, -(2**63), 2**63 - 1, 0.5, -0.0, 1e308, 5e-324, "", " ", "\0", "nan",
    "assistant", "tool", "\ud7ff", "\U0001f600", "a" * 300, "x-" * 3, "{", "[]", "{}", "null", [], {}, [None], [[]],
    {"": {}}, {"type": "text"}, {"type": "text", "text": None},
    {"type": "tool_use"}, {"type": "image"}, {"role": "user"},
)  # fmt: skip
"""Values that may stand anywhere."""


def mutated(seeds: Sequence[Any], rng: random.Random) -> Any:
    """Return one of the documents with 1 to 4 changes."""
    root = [copy.deepcopy(rng.choice(seeds))]
    for _ in range(rng.randint(1, 4)):
        holder, key = _field(root, rng)
        rng.choice(CHANGES)(holder, key, rng)
    return root[0] if root else None


def mutated_bytes(raw: bytes, rng: random.Random) -> bytes:
    """Return bytes with 1 to 4 changes: replaced, inserted, removed, repeated or cut."""
    data = bytearray(raw)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(data) + 1)
        kind = rng.randrange(5)
        if kind == 0 and data:
            data[at % len(data)] = rng.randrange(256)
        elif kind == 1:
            data[at:at] = rng.choice((b"\0", b"\xff", b"'", b'"', b"\\", b"[[[[", b"}", b"\x80\x80\x80\x80\x10"))
        elif kind == 2:
            del data[at : at + rng.randint(1, 8)]
        elif kind == 3:
            data[at:at] = data[at : at + rng.randint(1, 16)]
        else:
            del data[at:]
    return bytes(data)


def json_bytes(document: Any, rng: random.Random) -> bytes:
    """Return a document as JSON, now and then broken."""
    raw = orjson.dumps(document)
    return mutated_bytes(raw, rng) if rng.random() < 0.1 else raw


def _fields(node: Any) -> Iterator[tuple[Any, Any]]:
    waiting = [node]
    while waiting:
        holder = waiting.pop()
        keys = holder.keys() if isinstance(holder, dict) else range(len(holder))
        for key in keys:
            yield holder, key
            if isinstance(holder[key], dict | list):
                waiting.append(holder[key])


def _field(root: list[Any], rng: random.Random) -> tuple[Any, Any]:
    if not root:
        root.append(None)
    return rng.choice(list(_fields(root)))


def _replace(holder: Any, key: Any, rng: random.Random) -> None:
    holder[key] = copy.deepcopy(rng.choice(VALUES))


def _remove(holder: Any, key: Any, rng: random.Random) -> None:
    del holder[key]


def _wrap(holder: Any, key: Any, rng: random.Random) -> None:
    holder[key] = [holder[key]] if rng.random() < 0.5 else {rng.choice(("type", "content", "x")): holder[key]}


def _nest(holder: Any, key: Any, rng: random.Random) -> None:
    for _ in range(rng.choice((3, 30, 55))):
        holder[key] = [holder[key]]


def _repeat(holder: Any, key: Any, rng: random.Random) -> None:
    if isinstance(holder, list):
        holder.insert(key, copy.deepcopy(holder[key]))
    else:
        holder[rng.choice(("name", "id", "role", "type", "content", "x"))] = copy.deepcopy(holder[key])


def _alter_text(holder: Any, key: Any, rng: random.Random) -> None:
    if isinstance(holder[key], str):
        holder[key] = mutated_bytes(holder[key].encode(), rng).decode(errors="replace")
    else:
        _replace(holder, key, rng)


CHANGES: Sequence[Callable[[Any, Any, random.Random], None]] = (
    _replace, _replace, _remove, _wrap, _nest, _repeat, _alter_text,
)  # fmt: skip

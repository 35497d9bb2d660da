"""Links of a conversation: each names its messages up to one of them, by a digest. Pure.

An agent repeats its own messages byte by byte, but a response often comes back a little changed, since libraries parse
and write it again: spaces around its text, the looks of its arguments' JSON and the reasoning before it do not count.
"""

from collections.abc import Iterable
from hashlib import blake2b

import orjson

from stepstream.topics.events import Message

Link = bytes


def link(before: Link, message: Message) -> Link:
    """The link of a message after those that `before` names; `b""`: it is the first."""
    if message["role"] == "assistant":
        calls = [(call["call_id"], call["name"], _plain(call["arguments"])) for call in message["tool_calls"]]
        said = orjson.dumps(("assistant", message["content"].strip(), calls))
    else:
        said = orjson.dumps((message["role"], message["content"], message["tool_call_id"], message["name"]))
    return blake2b(before + said, digest_size=16).digest()


def chain(messages: Iterable[Message], before: Link = b"") -> list[Link]:
    """The link of each of the messages."""
    links = []
    for message in messages:
        before = link(before, message)
        links.append(before)
    return links


def _plain(arguments: str) -> str:
    """JSON without the freedom of its looks; what is no JSON as it is."""
    try:
        return orjson.dumps(orjson.loads(arguments), option=orjson.OPT_SORT_KEYS).decode()
    except orjson.JSONDecodeError:
        return arguments

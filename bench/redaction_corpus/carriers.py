# ruff: noqa: E501 - tables of phrases and formats read best one to a line
"""Render lines as agents' texts: chats, logs, code, tool arguments and results, and encodings of them."""

import base64
import html
import json
import random
import urllib.parse
from collections.abc import Callable

Lines = list[str]
Carrier = Callable[[random.Random, Lines], str]

PROSE = (
    "The order was sent on Monday and should arrive within two days.",
    "I checked the inventory service; it answers in 12.5 ms at the 99th percentile.",
    "Let me look that up and compare both results before I change anything.",
    "The test suite passes with 148 tests, 3 skipped, in 12.41s.",
    "We should retry with exponential backoff, at most 5 times.",
    "According to section 4.2.1 of the manual, the limit is 1,024 entries.",
    "Next I read the file and search for where the function is called.",
    "Das Ergebnis stimmt; danke für die Geduld.",
    "Le fichier a été mis à jour hier à 14:32.",
    "for index, row in enumerate(rows): total += row['amount'] * rate",
    "SELECT id, created_at FROM orders WHERE status = 'open' LIMIT 100;",
    "def area(width: float, height: float) -> float: return width * height",
    "WARN retry 2 of 5 after 250 ms (status 503)",
    "Traceback (most recent call last):",
    "KeyError: 'amount'",
)


def _chat(rng: random.Random, lines: Lines) -> str:
    return " ".join(lines)


def _log(rng: random.Random, lines: Lines) -> str:
    return "\n".join(f"2026-03-{rng.randrange(1, 29):02} 12:{rng.randrange(60):02}:07,{rng.randrange(1000):03} INFO app.{n} {line}" for n, line in enumerate(lines))  # fmt: skip


def _arguments(rng: random.Random, lines: Lines) -> str:
    return json.dumps({"query": lines[0], "options": {"limit": 10, "notes": lines[1:]}, "dry_run": False})


def _pretty(rng: random.Random, lines: Lines) -> str:
    return json.dumps([{"id": n, "text": line} for n, line in enumerate(lines)], indent=2, ensure_ascii=False)


def _nested(rng: random.Random, lines: Lines) -> str:
    inner = json.dumps({"body": "\n".join(lines), "ok": True})
    return json.dumps({"status": 200, "payload": inner})


def _twice_nested(rng: random.Random, lines: Lines) -> str:
    return json.dumps({"event": json.dumps({"message": _arguments(rng, lines)})})


def _unicode_escapes(rng: random.Random, lines: Lines) -> str:
    text = json.dumps({"text": "\n".join(lines)})
    return text.replace("@", "\\u0040").replace("/", "\\/").replace("+", "\\u002b")


def _code(rng: random.Random, lines: Lines) -> str:
    return "import os\n\n\ndef main():\n" + "\n".join(f"    # {line}" for line in lines) + "\n    return os.getcwd()\n"


def _trace(rng: random.Random, lines: Lines) -> str:
    frames = "\n".join(
        f'  File "/srv/app/worker.py", line {rng.randrange(900)}, in step\n    run({n})' for n in range(2)
    )
    return "Traceback (most recent call last):\n" + frames + "\nRuntimeError: " + "\n".join(lines)


def _base64(rng: random.Random, lines: Lines) -> str:
    return "data: " + base64.b64encode("\n".join(lines).encode()).decode() + " (decoded on arrival)"


def _url(rng: random.Random, lines: Lines) -> str:
    return "GET https://api.host.io/v1/note?text=" + urllib.parse.quote("\n".join(lines), safe="") + "&page=2"


def _html(rng: random.Random, lines: Lines) -> str:
    return "<ul>" + "".join(f"<li>{html.escape(line).replace('@', '&#64;')}</li>" for line in lines) + "</ul>"


def _yaml(rng: random.Random, lines: Lines) -> str:
    return "steps:\n" + "\n".join(f"  - {line}" for line in lines)


def _markdown(rng: random.Random, lines: Lines) -> str:
    return "## Notes\n\n" + "\n".join(f"* {line}" for line in lines) + "\n\n```\n" + "exit 0\n```\n"


def _tsv(rng: random.Random, lines: Lines) -> str:
    return "id\ttext\tdone\n" + "\n".join(f"{n}\t{line}\ttrue" for n, line in enumerate(lines))


def _python_repr(rng: random.Random, lines: Lines) -> str:
    return repr({"rows": lines, "count": len(lines)})


def _json_lines(rng: random.Random, lines: Lines) -> str:
    return "\n".join(
        json.dumps({"level": "info", "msg": line, "ts": 1_760_000_000 + n}) for n, line in enumerate(lines)
    )


def _hex(rng: random.Random, lines: Lines) -> str:
    return "payload=0x " + "\n".join(lines).encode().hex()


def _form(rng: random.Random, lines: Lines) -> str:
    return "POST /submit HTTP/1.1\r\n\r\n" + urllib.parse.urlencode([("comment", line) for line in lines])


def _base64_json(rng: random.Random, lines: Lines) -> str:
    return json.dumps(
        {"content": base64.urlsafe_b64encode(json.dumps({"t": lines}).encode()).decode(), "encoding": "base64"}
    )


def _numeric_entities(rng: random.Random, lines: Lines) -> str:
    return (
        "<p>"
        + "<br>".join("".join(f"&#x{ord(c):x};" if c in "@.-" else html.escape(c) for c in line) for line in lines)
        + "</p>"
    )


DEVELOPMENT: tuple[Carrier, ...] = (_chat, _chat, _log, _arguments, _pretty, _nested, _unicode_escapes, _code, _trace, _base64, _url, _html)  # fmt: skip
HELD_OUT: tuple[Carrier, ...] = (_yaml, _markdown, _tsv, _python_repr, _json_lines, _twice_nested, _hex, _form, _base64_json, _numeric_entities, _chat, _trace)  # fmt: skip
# Proportions of agents' traffic: mostly plain text, logs, code and tool calls, and a few encodings.
EVERYDAY: tuple[Carrier, ...] = (
    *(_chat,) * 10, *(_log,) * 4, *(_arguments,) * 6, *(_pretty,) * 4, *(_code,) * 5, *(_trace,) * 3, *(_markdown,) * 4,
    *(_json_lines,) * 2, *(_nested,) * 2, _unicode_escapes, _url, _html, _base64,
)  # fmt: skip

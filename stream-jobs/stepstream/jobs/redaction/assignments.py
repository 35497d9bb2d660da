"""Rules for secrets that only their context tells: passwords, keys and tokens in assignments, headers, addresses.

A keyword (`password`, `api_key`, `token`) is looked for first; what stands around it is read from there, so that a
text without a keyword costs nothing and no pattern can run away.
"""

import re
from collections.abc import Callable, Iterator
from functools import lru_cache

from stepstream.jobs.redaction.checks import entropy
from stepstream.jobs.redaction.re2_patterns import relaxed
from stepstream.jobs.redaction.rule import Finder, Rule

# What tells a password: any value that is no placeholder and no code.
_STRONG = ("password", "passwd", "passphrase", "passwort", "pwd", "passcode", "contraseña", "mot de passe", "kennwort")
# What tells a key: a value with digits and letters.
_MEDIUM = (
    "secret", "api_key", "apikey", "api key", "access_key", "accesskey", "auth_key", "authkey", "private_key",
    "privatekey", "signing_key", "signingkey", "encryption_key", "encryptionkey", "master_key", "masterkey",
    "account_key", "accountkey", "sharedkey", "shared_key", "client_key", "service_key", "license_key", "app_key",
    "appkey", "storage_key",
)  # fmt: skip
# What may tell one: only a value that looks drawn at random.
_WEAK = ("token", "credential", "session", "auth", "jwt", "cookie", "sid=", "_key", "pat=")

_CORES = ("key", "pass", "secret")

_NOT_SECRET_BEFORE = re.compile(
    r"(?:page|next|prev|continuation|continue|sync|cursor|pad|eos|bos|unk|mask|special|max|min|num|total|prompt|completion"
    r"|input|output|cached|reasoning|public|primary|foreign|sort|partition|cache|idempotency|dedup|group|row|object"
    r"|routing|message|trace|span|event|i18n|translation|hot|host|registry|known|no|is|has|use|show|hide|toggle)[_ -]?$"
)
# A long run that goes on with a digit is the value.
_NOT_SECRET_AFTER = re.compile(
    r"s?[_ -]?(?:id|name|type|count|url|uri|endpoint|limit|expir\w*|len\w*|arn|path|file\w*|hint|policy|ref|version"
    r"|budget|usage|field|label|prompt|input|rotat\w*|strength|min\w*|max\w*|at|ttl|age|algorithm|alg|scopes?|status"
    r"|valid\w*|required|reset|manager|store|provider|length|format|env|var|iz\w+|is\w+)(?![a-z]|\d\w{8})"
)
_SEPARATOR = re.compile(
    r"[\w.-]{0,24}(?:(?P<quote>\\{0,3}[\"'`])\]?\s{0,4}(?:=>|:=|==?|:|,)|\]?\)?\s{0,4}(?:=>|:=|==?|(?::\s?(?:str|string|String)\s?)=|:(?!=|:)))\s{0,4}"
)
_IS = re.compile(r"\s{1,3}(?:is|was|=|ist|est|es)\s{0,3}:?\s{0,3}")
_BEFORE_QUOTE = re.compile(r"s?\s{1,3}(?=[\"'`])")
_XML = re.compile(r"[\w.-]{0,24}>\s{0,4}")
# Where something else says where the value ends, it may have any sign: an element's end; the next field of a connection
# string; the next parameter of a query, which is one only with a name and `=`.
_ELEMENT = re.compile(r"[^\s<>]{4,512}(?=</)")
_FIELD = re.compile(r"(?![A-Za-z_][\w.]{0,40}[(\[][^;\n]{0,80}[)\]])[^\s\"'`;<>\\]{4,512}(?=;)")
_PARAMETER = re.compile(r"(?:[^\s\"'`&<>\\]|&(?![\w.-]{1,32}=)){4,512}")
_FLAG = re.compile(r"(?:^|[^\w-])--[\w-]{0,24}$")
_SPACE = re.compile(r"[\w-]{0,24}\s{1,4}(?=[^\s-])")
_QUOTED = re.compile(r"[rbf]?(?P<q>[\"'`])(?P<value>(?:\\.|(?!(?P=q))[^\\\n]){3,512})(?P=q)")
_BARE = re.compile(r"[^\s\"'`,;&<>(){}\[\]|\\]{4,512}")
# Drawn from all signs of a keyboard, as no code is: with digits, letters, and signs that end an ordinary value.
_WILD_SIGN = r"[^\s\"'`,;<>\\=]"
_WILD = re.compile(
    rf"(?![A-Za-z_][\w.]{{2,40}}[(\[])(?![$%]?[({{]{{1,2}}\w*[)}}])(?={_WILD_SIGN}{{0,40}}\d)(?={_WILD_SIGN}{{0,40}}[A-Za-z])"
    rf"{_WILD_SIGN}{{6,40}}(?![^\s\"'`,;])"
)

_PLACEHOLDER = re.compile(
    r"[*•xX.#_?-]+|\$(?:[{(].*|[A-Za-z_]\w*(?:[$.:/\[-].*)?)|<[^>]*>|\{\{?.*\}?\}|%\(?\w*\)?s|%\w+%|\[[^\]]*\]"
    r"|(?:your|my|the|some|enter|insert|new|old|current)[-_ ].*"
    r"|(?:null|none|nil|true|false|undefined|empty|string|str|text|password|passwd|pwd|secret|token|bearer|redacted"
    r"|hidden|masked|optional|required|changeme|example|placeholder|secretstr|bytes|int|any|object|n/?a|todo|tbd|unset"
    r"|missing|invalid|incorrect|wrong|expired|yes|no|on|off|here)",
    re.IGNORECASE,
)
_PROSE = re.compile(
    r"\b(?:must|required?|enter|invalid|incorrect|should|characters?|forgot|reset|your|please|cannot|contain|field|the|is"
    r"|for|of|to)\b",
    re.IGNORECASE,
)
_DOTTED = re.compile(r"[A-Za-z_]\w*(?:(?:\.|->|::)[A-Za-z_]\w*)+")
_WORD = re.compile(r"[A-Za-z][a-z]*(?:[_-][A-Za-z]+)*")
_PATH = re.compile(r"(?:~|\.{1,2})?(?:/[\w.-]{1,24}){1,20}/?")
_UUID = re.compile(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}", re.IGNORECASE)
_DRAWN = r"[A-Za-z0-9+/=_.~!@#$%^*:-]{12,512}"
_RANDOM = re.compile(_DRAWN)
_RUN = re.compile(r"[A-Za-z0-9+/=_~-]{12,}")


def _cored(words: tuple[str, ...]) -> dict[str, tuple[tuple[str, int], ...]]:
    """The words by a piece that several share, each with its distance from there: few pieces are quickly looked for."""
    cored: dict[str, tuple[tuple[str, int], ...]] = {}
    for word in words:
        core = next((core for core in _CORES if core in word), word)
        cored[core] = (*cored.get(core, ()), (word, word.index(core)))
    return cored


def _positions(lowered: str, cored: dict[str, tuple[tuple[str, int], ...]]) -> Iterator[tuple[int, int]]:
    for core, words in cored.items():
        place = lowered.find(core)
        while place >= 0:
            for word, before in words:
                if lowered.startswith(word, place - before) and place >= before:
                    yield place - before, place - before + len(word)
            place = lowered.find(core, place + 1)


@lru_cache(4)
def _lower(text: str) -> str:
    """Lower case and `_` for `-`, each character in its place (a few letters become two otherwise)."""
    lowered = text.lower()
    if len(lowered) != len(text):
        lowered = "".join(c.lower() if len(c.lower()) == 1 else c for c in text)
    return lowered.replace("-", "_")


def _value_after(text: str, place: int, begin: int) -> tuple[int, int, bool, bool] | None:
    """Start and end of what is assigned, whether it is quoted, and whether it must look like no word."""
    separator = _SEPARATOR.match(text, place)
    doubtful = True
    if separator is not None:
        at = separator.end()
        doubtful = not (text[begin:place].isupper()) and text[begin - 1 : begin] not in (";", "?", "&")  # fmt: skip
    elif xml := (_XML.match(text, place) if text[max(0, begin - 24) : begin].rfind("<") >= 0 else None):
        at = xml.end()
    elif flag := (_SPACE.match(text, place) if _FLAG.search(text, max(0, begin - 32), begin) else None):
        at, doubtful = flag.end(), False
    elif said := _IS.match(text, place) or _BEFORE_QUOTE.match(text, place):
        at = said.end()
    else:
        return None
    quoted = _QUOTED.match(text, at)
    if quoted is not None:
        return *quoted.span("value"), True, doubtful
    bounded = _bounded(text, begin, at, separator is None)
    if bounded is not None:
        return *bounded, False, doubtful
    bare = _BARE.match(text, at)
    wild = _WILD.match(text, at)
    if wild and (bare is None or (wild.end() > bare.end() and text[begin - 1 : begin] not in ("?", "&"))):
        bare = wild
    if bare is None:
        return None
    start, end = bare.span()
    if text[end : end + 1] in ("(", "[", "{"):  # a call, a look-up, a template
        return None
    while end > start and text[end - 1] in ".:!?" and text[end : end + 1] in ("", " ", "\n", "\t"):
        end -= 1
    return start, end, False, doubtful


def _bounded(text: str, begin: int, at: int, element: bool) -> tuple[int, int] | None:
    """The value at `at` where what is around it says where it ends: in an element, connection string or query."""
    before = text[begin - 1 : begin]
    if element:
        pattern = _ELEMENT if text[at - 1 : at] == ">" else None
    else:
        assigned = text[at - 1 : at] == "="
        pattern = _FIELD if assigned and before == ";" else _PARAMETER if assigned and before in ("?", "&") else None
    found = pattern.match(text, at) if pattern is not None and before else None
    return found.span() if found is not None else None


Accept = Callable[[str, bool, bool], bool]
"""Whether a value counts, given whether it is quoted and whether it must look like no word."""


def _assigned(words: tuple[str, ...], accept: Accept) -> Finder:
    """A rule's `find`: what is assigned to one of the words and accepted."""

    cored = _cored(words)

    def find(text: str, low: int, high: int) -> Iterator[tuple[int, int]]:
        lowered = _lower(text)
        for begin, place in _positions(lowered, cored):
            if _NOT_SECRET_BEFORE.search(lowered, max(0, begin - 16), begin) or _NOT_SECRET_AFTER.match(lowered, place):
                continue
            found = _value_after(text, place, begin)
            if found is not None:
                start, end, quoted, doubtful = found
                value = text[start:end]
                if not _PLACEHOLDER.fullmatch(value) and accept(value, quoted, doubtful):
                    yield start, end

    return find


def _password(value: str, quoted: bool, doubtful: bool) -> bool:
    plain = value.isalpha() or _DOTTED.fullmatch(value) or _WORD.fullmatch(value)
    if quoted:
        return len(value) >= 4 and not (" " in value and (_PROSE.search(value) or value.count(" ") > 7))
    return not (plain and doubtful)


def _key(value: str, quoted: bool, doubtful: bool) -> bool:
    if " " in value or len(value) < 8 or _DOTTED.fullmatch(value) or _WORD.fullmatch(value) or value.isdigit():
        return False
    if value.startswith(("http://", "https://", "arn:", "projects/")) or _PATH.fullmatch(value):
        return False
    mixed = any(map(str.isdigit, value)) and any(map(str.isalpha, value))
    return mixed or (len(value) >= 16 and entropy(value) > 3.3 and not value.islower())


def _drawn(value: str, quoted: bool, doubtful: bool) -> bool:
    if (
        not _RANDOM.fullmatch(value)
        or _UUID.fullmatch(value)
        or value.startswith(("http", "arn:"))
        or _PATH.fullmatch(value)
    ):
        return False
    run = max(_RUN.findall(value), key=len, default="")
    if len(run) < 16 or _WORD.fullmatch(run):
        return False
    digits = sum(map(str.isdigit, run))
    return 0 < digits < len(run) and entropy(run) > 3.0 and (digits > 2 or not (run.islower() or run.isupper()))


_URL = re.compile(
    r"://(?P<value>[^\s/:@\"'<>`]{0,128}:[^\s/\"'<>`]{1,256}|[A-Za-z0-9_-]{20,200})@(?=[\w\[.-])", re.IGNORECASE
)
_URL_PLACEHOLDER = re.compile(
    r"(?:[^:]*:)?(?:\$\{?\w+\}?|<[^>]*>|\{[^}]*\}|\*+|x+|\.\.\.|%s|\[[^\]]*\]|pass(?:word|wd)?|pwd|secret)",
    re.IGNORECASE,
)
_AUTHORIZATION = re.compile(
    r"authorization[\"'\]]{0,2}\s{0,3}[:=,]\s{0,3}[\"']?(?!bearer\b)(?:[A-Za-z][\w-]{2,20}\s+)?(?P<value>[A-Za-z0-9._~+/=:-]{8,4000})",
    re.IGNORECASE,
)
_HEADER = re.compile(r"authorization", re.IGNORECASE)
_BEARER = re.compile(r"\bbearer[\s:=\"']{1,4}(?P<value>[A-Za-z0-9._~+/-]{16,4000}=*)", re.IGNORECASE)
_SHELL = re.compile(
    r"\b(?:mysql(?:dump|admin)?|mariadb)\b[^\n|;]{0,120}?\s-p(?P<a>[^\s\"'<>$-][^\s\"'<>]{3,80})"
    r"|\bcurl\b[^\n|;]{0,200}?\s(?:-u|--user)[\s=][\"']?[^\s:\"'$]{1,64}:(?P<b>[^\s\"'<>$]{3,128})"
    r"|\bsshpass\s+-p\s*[\"']?(?P<c>[^\s\"'<>$]{3,128})"
    r"|\b(?:redis-cli|docker login)\b[^\n|;]{0,120}?\s(?:-a|-p)\s+[\"']?(?P<d>[^\s\"'<>$-][^\s\"'<>]{3,128})"
)


def _url(text: str, low: int, high: int) -> Iterator[tuple[int, int]]:
    for match in _URL.finditer(text, low, high):
        if not _URL_PLACEHOLDER.fullmatch(match["value"]):
            yield match.span("value")


def _authorization(text: str, low: int, high: int) -> Iterator[tuple[int, int]]:
    for match in _AUTHORIZATION.finditer(text, low, high):
        if not _PLACEHOLDER.fullmatch(match["value"]) and match["value"].lower() not in ("bearer", "required"):
            yield match.span("value")


def _bearer(text: str, low: int, high: int) -> Iterator[tuple[int, int]]:
    for match in _BEARER.finditer(text, low, high):
        told = _HEADER.search(text, max(0, match.start() - 24), match.start()) is not None
        if told or any(map(str.isdigit, match["value"])) or not match["value"].islower():
            yield match.span("value")


def _shell(text: str, low: int, high: int) -> Iterator[tuple[int, int]]:
    for match in _SHELL.finditer(text, low, high):
        yield match.span(match.lastgroup or 0)


def _words_rule(name: str, rank: int, words: tuple[str, ...], accept: Accept, quoted: str, bare: str) -> Rule:
    """The rule for what is assigned to one of the words; all values that are accepted begin as `quoted` or `bare`."""
    told = "|".join(words).replace("_", "[_-]")
    # As `_value_after` reads: an assignment or an element, what is said, a flag.
    signs = r"\\*[\"'`]\]?\s{0,4}[=:,][=>]?|\]?\)?\s{0,4}[=:](?:\s?str(?:ing)?\s?=|[=>]?)|>"
    assigned = rf"(?:{told})(?:[\w.-]*(?:{signs})|\s+(?:is|was|ist|est|es)\s*:?)\s*|--[\w-]*(?:{told})[\w-]*\s+"
    hint = rf"(?:{assigned})(?:[rbf]?[\"'`]{quoted}|{bare})|(?:{told})s?\s+[\"'`]{quoted}"
    return Rule(name, rank, _assigned(words, accept), relaxed(hint, re.IGNORECASE), told_by="words", quotes=True)


ASSIGNMENTS = (
    Rule("connection_string", 5, _url, relaxed(_URL.pattern, re.IGNORECASE)),
    Rule("authorization", 14, _authorization, relaxed(_AUTHORIZATION.pattern, re.IGNORECASE)),
    Rule("bearer", 15, _bearer, relaxed(_BEARER.pattern, re.IGNORECASE)),
    Rule("password", 18, _shell, relaxed(_SHELL.pattern)),
    _words_rule("password", 20, _STRONG, _password, "", r"[^\s<>]{4}"),
    _words_rule("secret", 21, _MEDIUM, _key, r"[^ \n]{8}", r"\S{8}"),
    _words_rule("secret", 22, _WEAK, _drawn, _DRAWN, _DRAWN),
)

"""Find secrets by their context: passwords, keys and tokens in assignments, headers and URLs.

The rules search for a keyword (`password`, `api_key`, `token`) and then read the text around it. So a text without a
keyword costs nothing, and matching time stays linear.
"""

import re
from collections.abc import Callable, Iterator
from functools import lru_cache

from stepstream.jobs.redaction.checks import entropy
from stepstream.jobs.redaction.re2_patterns import relax
from stepstream.jobs.redaction.rule import Finder, Rule

# Words before a password: any value but placeholders and code matches.
_STRONG = ("password", "passwd", "passphrase", "passwort", "pwd", "passcode", "contraseña", "mot de passe", "kennwort")
# Words before a key: a value with digits and letters matches.
_MEDIUM = (
    "secret", "api_key", "apikey", "api key", "access_key", "accesskey", "auth_key", "authkey", "private_key",
    "privatekey", "signing_key", "signingkey", "encryption_key", "encryptionkey", "master_key", "masterkey",
    "account_key", "accountkey", "sharedkey", "shared_key", "client_key", "service_key", "license_key", "app_key",
    "appkey", "storage_key",
)  # fmt: skip
# Weak words: only a value that looks random matches.
_WEAK = ("token", "credential", "session", "auth", "jwt", "cookie", "sid=", "_key", "pat=")

_CORES = ("key", "pass", "secret")

_NOT_SECRET_BEFORE = re.compile(
    r"(?:page|next|prev|continuation|continue|sync|cursor|pad|eos|bos|unk|mask|special|max|min|num|total|prompt|completion"
    r"|input|output|cached|reasoning|public|primary|foreign|sort|partition|cache|idempotency|dedup|group|row|object"
    r"|routing|message|trace|span|event|i18n|translation|hot|host|registry|known|no|is|has|use|show|hide|toggle)[_ -]?$"
)
# A long run that contains a digit is the value itself.
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
# A value with a delimiter may contain any character. Delimiters: the end of an element; the next field of a connection
# string; the next parameter of a query, with a name and `=`.
_ELEMENT = re.compile(r"[^\s<>]{4,512}(?=</)")
_FIELD = re.compile(r"(?![A-Za-z_][\w.]{0,40}[(\[][^;\n]{0,80}[)\]])[^\s\"'`;<>\\]{4,512}(?=;)")
_PARAMETER = re.compile(r"(?:[^\s\"'`&<>\\]|&(?![\w.-]{1,32}=)){4,512}")
_FLAG = re.compile(r"(?:^|[^\w-])--[\w-]{0,24}$")
_SPACE = re.compile(r"[\w-]{0,24}\s{1,4}(?=[^\s-])")
_QUOTED = re.compile(r"[rbf]?(?P<q>[\"'`])(?P<value>(?:\\.|(?!(?P=q))[^\\\n]){3,512})(?P=q)")
_BARE = re.compile(r"[^\s\"'`,;&<>(){}\[\]|\\]{4,512}")
# A value with digits, letters, and characters that end an ordinary value. Code does not look like this.
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


def _by_core(words: tuple[str, ...]) -> dict[str, tuple[tuple[str, int], ...]]:
    """Group the words by a substring that several share, each with its offset: few substrings are faster to find."""
    by_core: dict[str, tuple[tuple[str, int], ...]] = {}
    for word in words:
        core = next((core for core in _CORES if core in word), word)
        by_core[core] = (*by_core.get(core, ()), (word, word.index(core)))
    return by_core


def _positions(lowered: str, by_core: dict[str, tuple[tuple[str, int], ...]]) -> Iterator[tuple[int, int]]:
    for core, words in by_core.items():
        place = lowered.find(core)
        while place >= 0:
            for word, before in words:
                if lowered.startswith(word, place - before) and place >= before:
                    yield place - before, place - before + len(word)
            place = lowered.find(core, place + 1)


@lru_cache(4)
def _lower(text: str) -> str:
    """Return the text in lower case with `_` for `-`; positions stay (some letters would become two)."""
    lowered = text.lower()
    if len(lowered) != len(text):
        lowered = "".join(c.lower() if len(c.lower()) == 1 else c for c in text)
    return lowered.replace("-", "_")


def _value_after(text: str, place: int, begin: int) -> tuple[int, int, bool, bool] | None:
    """Return start and end of the assigned value, if it is quoted, and if an ordinary word is doubtful as a value."""
    separator = _SEPARATOR.match(text, place)
    doubtful = True
    if separator is not None:
        at = separator.end()
        doubtful = not (text[begin:place].isupper()) and text[begin - 1 : begin] not in (";", "?", "&")  # fmt: skip
    elif xml := (_XML.match(text, place) if text[max(0, begin - 24) : begin].rfind("<") >= 0 else None):
        at = xml.end()
    elif flag := (_SPACE.match(text, place) if _FLAG.search(text, max(0, begin - 32), begin) else None):
        at, doubtful = flag.end(), False
    elif verb := _IS.match(text, place) or _BEFORE_QUOTE.match(text, place):
        at = verb.end()
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
    """Return the value at `at` if it has a delimiter: in an element, a connection string or a query."""
    before = text[begin - 1 : begin]
    if element:
        pattern = _ELEMENT if text[at - 1 : at] == ">" else None
    else:
        assigned = text[at - 1 : at] == "="
        pattern = _FIELD if assigned and before == ";" else _PARAMETER if assigned and before in ("?", "&") else None
    match = pattern.match(text, at) if pattern is not None and before else None
    return match.span() if match is not None else None


Accept = Callable[[str, bool, bool], bool]
"""Returns True if a value is a secret; the flags: it is quoted, an ordinary word is doubtful."""


def _assigned(words: tuple[str, ...], accept: Accept) -> Finder:
    """Build a rule's `find`: the values that are assigned to one of the words and accepted."""
    by_core = _by_core(words)

    def find(text: str, low: int, high: int) -> Iterator[tuple[int, int]]:
        lowered = _lower(text)
        for begin, place in _positions(lowered, by_core):
            if _NOT_SECRET_BEFORE.search(lowered, max(0, begin - 16), begin) or _NOT_SECRET_AFTER.match(lowered, place):
                continue
            assigned = _value_after(text, place, begin)
            if assigned is not None:
                start, end, quoted, doubtful = assigned
                value = text[start:end]
                if not _PLACEHOLDER.fullmatch(value) and accept(value, quoted, doubtful):
                    yield start, end

    return find


def _is_password(value: str, quoted: bool, doubtful: bool) -> bool:
    plain = value.isalpha() or _DOTTED.fullmatch(value) or _WORD.fullmatch(value)
    if quoted:
        return len(value) >= 4 and not (" " in value and (_PROSE.search(value) or value.count(" ") > 7))
    return not (plain and doubtful)


def _is_key(value: str, quoted: bool, doubtful: bool) -> bool:
    if " " in value or len(value) < 8 or _DOTTED.fullmatch(value) or _WORD.fullmatch(value) or value.isdigit():
        return False
    if value.startswith(("http://", "https://", "arn:", "projects/")) or _PATH.fullmatch(value):
        return False
    mixed = any(map(str.isdigit, value)) and any(map(str.isalpha, value))
    return mixed or (len(value) >= 16 and entropy(value) > 3.3 and not value.islower())


def _is_random(value: str, quoted: bool, doubtful: bool) -> bool:
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
        in_header = _HEADER.search(text, max(0, match.start() - 24), match.start()) is not None
        if in_header or any(map(str.isdigit, match["value"])) or not match["value"].islower():
            yield match.span("value")


def _shell(text: str, low: int, high: int) -> Iterator[tuple[int, int]]:
    for match in _SHELL.finditer(text, low, high):
        yield match.span(match.lastgroup or 0)


def _words_rule(name: str, rank: int, words: tuple[str, ...], accept: Accept, quoted: str, bare: str) -> Rule:
    """Build the rule for values that are assigned to one of the words; they begin as `quoted` or `bare`."""
    keyword = "|".join(words).replace("_", "[_-]")
    # As `_value_after` reads: an assignment or an element, a verb, a flag.
    signs = r"\\*[\"'`]\]?\s{0,4}[=:,][=>]?|\]?\)?\s{0,4}[=:](?:\s?str(?:ing)?\s?=|[=>]?)|>"
    assigned = rf"(?:{keyword})(?:[\w.-]*(?:{signs})|\s+(?:is|was|ist|est|es)\s*:?)\s*|--[\w-]*(?:{keyword})[\w-]*\s+"
    hint = rf"(?:{assigned})(?:[rbf]?[\"'`]{quoted}|{bare})|(?:{keyword})s?\s+[\"'`]{quoted}"
    return Rule(name, rank, _assigned(words, accept), relax(hint, re.IGNORECASE), kind="words", reads_quotes=True)


ASSIGNMENTS = (
    Rule("connection_string", 5, _url, relax(_URL.pattern, re.IGNORECASE)),
    Rule("authorization", 14, _authorization, relax(_AUTHORIZATION.pattern, re.IGNORECASE)),
    Rule("bearer", 15, _bearer, relax(_BEARER.pattern, re.IGNORECASE)),
    Rule("password", 18, _shell, relax(_SHELL.pattern)),
    _words_rule("password", 20, _STRONG, _is_password, "", r"[^\s<>]{4}"),
    _words_rule("secret", 21, _MEDIUM, _is_key, r"[^ \n]{8}", r"\S{8}"),
    _words_rule("secret", 22, _WEAK, _is_random, _DRAWN, _DRAWN),
)

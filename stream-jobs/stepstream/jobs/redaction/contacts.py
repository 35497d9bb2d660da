"""Find addresses (e-mail, IP, MAC), and names of people after words that announce them.

The sampled job `inspect` searches for all other names.
"""

import ipaddress
import re
from collections.abc import Iterator

from stepstream.jobs.redaction.re2_patterns import max_length, relax
from stepstream.jobs.redaction.rule import Rule, has_context_before, pattern_rule

_LOCAL_REVERSED = re.compile(r"[\w.%+'/=-]{1,64}")
_DOMAIN = re.compile(r"(?:[^\W_](?:[\w-]{0,61}[^\W_])?\.){1,8}[^\W\d_]{2,24}(?![\w-])")
# image@2x.png names a file for a dense display.
_DENSITY = re.compile(r"\dx\.\w+$")

_OCTET = r"(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)"
_IPV4 = rf"(?<![\w.%-])(?<!\w/)(?:{_OCTET}\.){{3}}{_OCTET}(?![\w%]|\.\d|-\w)"
_VERSION = re.compile(
    r"(?:\bv|ver(?:sion)?s?|release|build|rev|firmware|driver|upgrade\w*|section|chapter|clause|§|figure|table|tag"
    r"|[=~<>!^]=|[\"']version[\"'])\W{0,4}(?:to |is |= ?|from )?[\"']?$",
    re.IGNORECASE,
)
_IPV6 = re.compile(r"(?<![\w:.])(?=[0-9A-Fa-f:]{0,4}:)[0-9A-Fa-f:]{3,39}(?:\.\d{1,3}){0,3}(?![\w:])")
# Eight groups, or two colons for the omitted ones, or six groups and an IPv4 address.
_IPV6_SHAPE = r"(?<![\w:.])(?:(?:[0-9A-Fa-f]{1,4}:){6}|[0-9A-Fa-f:]{0,38}::[0-9A-Fa-f]|[0-9A-Fa-f][0-9A-Fa-f:]{0,38}::)"
_MAC = r"(?<![\w:-])[0-9A-Fa-f]{2}([:-])(?:[0-9A-Fa-f]{2}\1){4}[0-9A-Fa-f]{2}(?![\w:-])"


def _email(text: str, low: int, high: int) -> Iterator[tuple[int, int]]:
    at = text.find("@")
    while at >= 0:
        domain = _DOMAIN.match(text, at + 1)
        local = _LOCAL_REVERSED.match(text[max(0, at - 64) : at][::-1]) if domain else None
        if domain and local:
            name = local.group()[::-1].lstrip(".%+'/=-").rsplit("=", 1)[-1].rsplit("/", 1)[-1]
            # git@host:owner/repository is an account of a program.
            if name and name != "git" and not _DENSITY.match(domain.group()):
                yield at - len(name), domain.end()
        at = text.find("@", at + 1)


def _ipv4(text: str, start: int, end: int) -> bool:
    value = text[start:end]
    if value.startswith(("0.", "127.", "255.255.")):  # identifies nobody
        return False
    return not has_context_before(text, start, _VERSION, 24)


def _ipv6(text: str, low: int, high: int) -> Iterator[tuple[int, int]]:
    for match in _IPV6.finditer(text, low, high):
        value = match.group().rstrip(":") if not match.group().endswith("::") else match.group()
        groups = [group for group in value.split(":") if group]
        # `std::vector`, `dead::beef` and 12:34:56 are no addresses.
        if "::" not in value and "." not in value and len(groups) != 8:
            continue
        if len(groups) < 3 and not value.lower().startswith(("fe80", "2", "fc", "fd")):
            continue
        if not any(character.isdigit() for character in value):
            continue
        try:
            address = ipaddress.IPv6Address(value)
        except ValueError:
            continue
        if not address.is_loopback and not address.is_unspecified:
            yield match.start(), match.start() + len(value)


PERSONAL = (
    Rule("email", 50, _email, relax(rf"{_LOCAL_REVERSED.pattern}@{_DOMAIN.pattern}")),
    pattern_rule("ip", 55, _IPV4, _ipv4, "digits"),
    Rule("ip", 55, _ipv6, relax(_IPV6_SHAPE), max_length(_IPV6.pattern), "digits"),
    pattern_rule("mac", 56, _MAC, kind="digits"),
)


_WORD = r"[^\W\d_a-z][^\W\d_]*(?:['’-][^\W\d_]+)?"
_NAME = rf"{_WORD}(?:\s(?:(?:van|von|de|der|den|da|di|del|la|le|bin|al|y|dos)\s){{0,2}}{_WORD}){{0,3}}"
_ANNOUNCED = (
    rf"(?:(?i:my name is|my name's|name:|i am called|this is|ich hei(?:ß|ss)e|mein name ist|je m'appelle|me llamo"
    rf"|mi nombre es|dear|hi|hello|regards,|cheers,|sincerely,|signed,|caller:|customer:|patient:|contact:)\s{{1,3}}"
    rf"|\b(?:Mr|Mrs|Ms|Miss|Dr|Prof|Herr|Frau|Señora?|Mme)\.?\s)(?P<value>{_NAME})"
)
_KEYED = re.compile(
    r"[\"'](?:(?P<sure>(?:first|last|middle|full|given|family|sur|maiden|customer|user|patient|contact|employee|account"
    r"|recipient|sender|author|cardholder|passenger)_?-?(?i:name)s?|surname|cardholder|(?:first|last|full)name)|name)[\"']"
    rf"\s{{0,3}}:\s{{0,3}}[\"'](?P<value>{_NAME})[\"']"
)
_NOBODY = frozenset({
    "the", "a", "an", "there", "all", "everyone", "team", "sir", "madam", "support", "world", "customer", "user",
    "friend", "folks", "i", "we", "you", "it", "this", "that", "not", "unknown", "anonymous", "admin", "administrator",
    "assistant", "agent", "system", "test",
})  # fmt: skip


def _is_person(text: str, start: int, end: int) -> bool:
    return text[start:end].split()[0].lower() not in _NOBODY


def _keyed(text: str, low: int, high: int) -> Iterator[tuple[int, int]]:
    for match in _KEYED.finditer(text, low, high):
        # Tools and files have a `name` too; a person's has two words.
        if match["sure"] or " " in match["value"]:
            yield match.span("value")


NAMES = (
    pattern_rule("name", 70, _ANNOUNCED, _is_person, "words"),
    Rule("name", 70, _keyed, relax(_KEYED.pattern), kind="words"),
)

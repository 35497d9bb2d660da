"""First redaction pass: e-mail addresses, secrets and card numbers become typed pseudonyms. Pure.

The same value gives the same pseudonym under one key, so that text stays joinable; without the key the value cannot
be guessed back from it.
"""

import hashlib
import hmac
import re
from collections import Counter
from collections.abc import Callable

_RULES: dict[str, str] = {
    "private_key": r"-----BEGIN (?:[A-Z]+ )*PRIVATE KEY-----[\s\S]*?(?:-----END (?:[A-Z]+ )*PRIVATE KEY-----|\Z)",
    "email": r"[A-Za-z0-9][A-Za-z0-9._%+'-]{0,63}@(?:[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?\.)+[A-Za-z]{2,24}",
    "aws_key": r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b",
    "github_token": r"\b(?:gh[pousr]_[A-Za-z0-9]{36,255}|github_pat_[A-Za-z0-9_]{22,255})",
    "api_key": r"\b(?:sk|rk|pk)[-_](?:[A-Za-z0-9]+[-_])*[A-Za-z0-9]{16,}",
    "slack_token": r"\bxox[abeoprs]-[A-Za-z0-9-]{10,}",
    "google_key": r"\bAIza[A-Za-z0-9_-]{35}",
    "jwt": r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*",
    "bearer": r"(?<=[Bb]earer )[A-Za-z0-9._~+/-]{16,}=*",
    "card": r"(?<![\d.])(?:\d[ -]?){12,18}\d(?![\d.]?\d)",
}
_PATTERN = re.compile("|".join(f"(?P<{name}>{pattern})" for name, pattern in _RULES.items()))
# One of these is in every match: most texts have none, and looking for them is much cheaper than the pattern.
_MARKS = re.compile(
    r"@|\d[ -]?\d[ -]?\d[ -]?\d[ -]?\d[ -]?\d|PRIVATE KEY|A[KS]IA|gh[pousr]_|github_pat_|[srp]k[-_]|xox|AIza|eyJ|earer "
)


class Redactor:
    """Replaces what must not be kept. Safe to share between threads."""

    def __init__(self, key: bytes) -> None:
        """`key` makes pseudonyms; whoever has it can check a guess."""
        self._key = key

    def redact(self, text: str, found: "Counter[str]") -> str:
        """The text with every match replaced as `<EMAIL:3f9a…>`; counts matches by rule into `found`."""
        if _MARKS.search(text) is None:
            return text
        return _PATTERN.sub(self._replacer(found), text)

    def _replacer(self, found: "Counter[str]") -> Callable[["re.Match[str]"], str]:
        def replace(match: "re.Match[str]") -> str:
            rule, value = match.lastgroup or "", match.group()
            if rule == "card" and not luhn(value):
                return value
            found[rule] += 1
            return self.pseudonym(rule, value)

        return replace

    def pseudonym(self, rule: str, value: str) -> str:
        """The stand-in of a value: its rule and the first 8 hex digits of a keyed digest."""
        digest = hmac.new(self._key, f"{rule}\x1f{value}".encode("utf-8", "surrogatepass"), hashlib.sha256)
        return f"<{rule.upper()}:{digest.hexdigest()[:8]}>"


def luhn(number: str) -> bool:
    """Whether the digits of a number pass the check of ISO/IEC 7812 (payment cards)."""
    digits = [int(character) for character in number if character.isdigit()]
    doubled = [sum(divmod(2 * digit, 10)) for digit in digits[-2::-2]]
    return (sum(digits[-1::-2]) + sum(doubled)) % 10 == 0 and any(digits)

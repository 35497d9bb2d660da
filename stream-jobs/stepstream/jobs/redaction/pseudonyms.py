"""Derive typed, stable pseudonyms for redacted values: `<EMAIL:3f9a0b1c2d4e>`.

Under one key, a value always has the same pseudonym, so that records can be joined. Without the key, nobody can test a
guess. Values are normalized first: spacing does not change the pseudonym of a card or phone number.
"""

import hashlib
import hmac
import ipaddress
import re
from contextlib import suppress

DIGITS = 12
PSEUDONYM = re.compile(rf"<[A-Z][A-Z0-9_]{{0,31}}:[0-9a-f]{{{DIGITS}}}>")
_NOT_ALNUM = re.compile(r"[\W_]+")
_NOT_DIGIT = re.compile(r"\D+")


def tenant_key(master: bytes, tenant: str) -> bytes:
    """Derive a tenant's pseudonym key from the master key: HKDF-SHA-256 (RFC 5869), 32 bytes.

    Pseudonyms of different tenants cannot be compared, and one tenant's key reveals nothing about another's.
    """
    extracted = hmac.digest(b"stepstream pseudonyms", master, "sha256")
    return hmac.digest(extracted, b"tenant\x1f" + tenant.encode("utf-8", "surrogatepass") + b"\x01", "sha256")


def normalize(rule: str, value: str) -> str:
    """Return the form of a value from which its pseudonym is derived."""
    if rule == "email":
        return value.lower()
    if rule == "phone":
        digits = _NOT_DIGIT.sub("", value.replace("(0)", ""))
        return "+" + digits[2:] if digits.startswith("00") else ("+" + digits if "+" in value else digits)
    if rule == "card":
        return _NOT_DIGIT.sub("", value)
    if rule == "ip":
        with suppress(ValueError):
            return ipaddress.ip_address(value).compressed
    if rule == "name":
        return " ".join(value.lower().split())
    if rule in {"iban", "mac"} or rule[2:3] == "_":  # national ids are named by country: us_ssn
        return _NOT_ALNUM.sub("", value).upper()
    return value


def pseudonym(key: bytes, rule: str, value: str) -> str:
    """Return the pseudonym of a value: its rule and the first digits of a keyed digest."""
    text = f"{rule}\x1f{normalize(rule, value)}"
    digest = hmac.digest(key, text.encode("utf-8", "surrogatepass"), hashlib.sha256)
    return f"<{rule.upper()}:{digest.hex()[:DIGITS]}>"

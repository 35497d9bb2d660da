"""Typed, stable stand-ins for what was redacted: `<EMAIL:3f9a0b1c2d4e>`.

Keyed: the same value has the same pseudonym under one key, so that texts stay joinable; without the key nobody can
check a guess. Values are normalised first, so that a card or phone number in another spacing is the same one.
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
    """The pseudonym key of a tenant: HKDF-SHA-256 (RFC 5869) of the master key, 32 bytes.

    Two tenants' pseudonyms of one value have nothing in common, and one tenant's key tells nothing about another's.
    """
    extracted = hmac.digest(b"stepstream pseudonyms", master, "sha256")
    return hmac.digest(extracted, b"tenant\x1f" + tenant.encode("utf-8", "surrogatepass") + b"\x01", "sha256")


def normalised(rule: str, value: str) -> str:
    """The form of a value that decides its pseudonym."""
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
    """The stand-in of a value: its rule and the first digits of a keyed digest."""
    text = f"{rule}\x1f{normalised(rule, value)}"
    digest = hmac.digest(key, text.encode("utf-8", "surrogatepass"), hashlib.sha256)
    return f"<{rule.upper()}:{digest.hex()[:DIGITS]}>"

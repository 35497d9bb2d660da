"""Find national ids by format, check digit and, for ambiguous formats, a word before them."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from unicodedata import decimal

from stepstream.jobs.redaction import checks
from stepstream.jobs.redaction.re2_patterns import relax
from stepstream.jobs.redaction.rule import Rule, by_pattern, has_context_before, pattern_rule

_RANK = 45
_PLAIN = re.compile(r"[^A-Za-z0-9]+")
_BEFORE, _AFTER = r"(?<![A-Za-z0-9])(?<!\d[.-])", r"(?![A-Za-z0-9]|[.-]\d)"


@dataclass(frozen=True)
class NationalId:
    """The formats of a national id."""

    name: str
    formatted: str
    """Pattern with separators that distinguish it from other numbers; empty: there is none."""
    check: Callable[[str], bool] | None = None
    """Verifies its letters (upper case) and digits; None: no check digit."""
    bare: str = ""
    """Pattern without separators (or with any); matches only after one of `words`."""
    words: str = ""
    """Pattern of the words that announce the id."""

    @property
    def region(self) -> str:
        """ISO 3166 code of the country, lower case."""
        return self.name[:2]

    def rules(self) -> tuple[Rule, ...]:
        """Return a rule for each of the two formats."""
        rules = []
        if self.formatted:
            rules.append(pattern_rule(self.name, _RANK, _framed(self.formatted), self._check(None), "digits"))
        if self.bare:
            bare = _framed(self.bare)
            find = by_pattern(bare, self._check(re.compile(self.words, re.IGNORECASE)))
            hint = relax(rf"(?i:{self.words})[\s\S]*{bare}")
            rules.append(Rule(self.name, _RANK, find, hint, kind="words"))
        return tuple(rules)

    def _check(self, words: "re.Pattern[str] | None") -> Callable[[str, int, int], bool]:
        check = self.check

        def passes(text: str, start: int, end: int) -> bool:
            if check is not None and not check(_plain(text[start:end])):
                return False
            return words is None or has_context_before(text, start, words)

        return passes


def _plain(written: str) -> str:
    """Return the letters (upper case) and the digits of an id; digits of any script become ASCII."""
    if not written.isascii():
        written = "".join(str(decimal(character, character)) for character in written)
    return _PLAIN.sub("", written).upper()


def _framed(pattern: str) -> str:
    return f"{_BEFORE}(?:{pattern}){_AFTER}"


IDS = (
    NationalId(
        "us_ssn",
        r"(?!000|666|9\d\d)\d{3}-(?!00)\d\d-(?!0000)\d{4}",
        bare=r"(?!000|666|9\d\d)\d{3}[ .-]?(?!00)\d\d[ .-]?(?!0000)\d{4}",
        words=r"\bssn|social.?sec|itin\b",
    ),
    NationalId("us_itin", r"9\d\d-(?:5\d|6[0-5]|7\d|8[0-8]|9[0-24-9])-\d{4}"),
    NationalId(
        "uk_nino",
        r"(?!BG|GB|KN|NK|NT|TN|ZZ)[A-CEGHJ-PR-TW-Z][A-CEGHJ-NPR-TW-Z][ -]?\d\d[ -]?\d\d[ -]?\d\d[ -]?[A-D]",
    ),
    NationalId("uk_nhs", "", checks.uk_nhs, r"\d{3}[ -]?\d{3}[ -]?\d{4}", r"\bnhs\b|patient"),
    NationalId("de_tax_id", r"[1-9]\d[ /]?\d{3}[ /]?\d{3}[ /]?\d{3}", checks.german_tax_id),
    NationalId(
        "fr_nir",
        r"[1-478] ?\d\d ?(?:0[1-9]|1[0-2]|[2-9]\d) ?(?:\d\d|2[AB]) ?\d{3} ?\d{3}[ -]?\d\d",
        checks.french_nir,
    ),
    NationalId("es_id", r"(?:\d{8}|[XYZxyz][ -]?\d{7})[ -]?[A-Za-z]", checks.spanish_id),
    NationalId("it_fiscal_code", r"[A-Z]{6}\d\d[A-EHLMPRST]\d\d[A-Z]\d{3}[A-Z]", checks.italian_code),
    NationalId(
        "nl_bsn",
        "",
        checks.dutch_bsn,
        r"\d{3}[ .]?\d{3}[ .]?\d{3}|\d{4}[ .]\d{2}[ .]\d{3}",
        r"\bbsn\b|burgerservice|sofi",
    ),
    NationalId(
        "br_cpf",
        r"\d{3}\.\d{3}\.\d{3}-\d\d",
        checks.brazilian_cpf,
        r"\d{11}|\d{9}-\d\d",
        r"\bcpf\b|contribuinte",
    ),
    NationalId(
        "in_aadhaar",
        r"[2-9]\d{3}(?: \d{4} |-\d{4}-)\d{4}(?![ -]\d{4})",
        checks.verhoeff,
        r"[2-9]\d{11}",
        r"aadha?ar|kyc|uidai|\buid\b|aadhar",
    ),
    NationalId("in_pan", r"[A-Z]{3}[ABCFGHLJPT][A-Z]\d{4}[A-Z]"),
    NationalId("pl_pesel", "", checks.polish_pesel, r"\d{11}", r"\bpesel\b"),
    NationalId(
        "se_personnummer",
        r"\d{6}[-+]\d{4}",
        checks.swedish_number,
        r"(?:19|20)?\d{6}[-+]?\d{4}",
        r"person.?n(?:ummer|r)|\bpnr\b",
    ),
    NationalId(
        "ca_sin",
        "",
        checks.luhn,
        r"\d{3}[ -]?\d{3}[ -]?\d{3}",
        r"\bsin\b|social.?ins|assurance sociale|\bnas\b",
    ),
    NationalId("au_tfn", "", checks.australian_tfn, r"\d{3}[ -]?\d{3}[ -]?\d{3}", r"\btfn\b|tax file"),
    NationalId("ch_ahv", r"756[. ]?\d{4}[. ]?\d{4}[. ]?\d{2}", checks.swiss_ahv),
    NationalId(
        "be_national",
        r"\d\d[.]\d\d[.]\d\d-\d{3}[.]\d\d",
        checks.belgian_number,
        r"\d{11}",
        r"rijksregister|registre national|\binsz\b|\bniss\b",
    ),
    NationalId("cn_id", r"[1-8]\d{5}(?:19|20)\d{9}[\dXx]", checks.chinese_id),
    NationalId("kr_rrn", r"\d{6}-[1-8]\d{6}", checks.korean_rrn),
    NationalId("mx_curp", r"[A-Z][AEIOUX][A-Z]{2}\d{6}[HMX][A-Z]{5}[A-Z0-9]\d"),
    NationalId("sg_nric", r"[STFG]\d{7}[A-Z]", checks.singapore_nric),
)

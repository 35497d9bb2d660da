"""Find numbers of international formats: payment cards, bank accounts, telephones."""

import re
from collections.abc import Iterator

from stepstream.jobs.redaction.checks import luhn, mod97
from stepstream.jobs.redaction.re2_patterns import max_length, relax
from stepstream.jobs.redaction.rule import Finder, Rule, has_context_before, pattern_rule

# The networks' number ranges (ISO/IEC 7812) with their lengths and printed groups.
_SEP = r"[ .-]?"
_CARD = (
    r"(?<![A-Za-z0-9])(?<!\d\.)(?:"
    rf"(?:4\d{{3}}|5[1-5]\d\d|2[2-7]\d\d|6(?:011|5\d\d|4[4-9]\d)|35\d\d|62\d\d){_SEP}\d{{4}}{_SEP}\d{{4}}{_SEP}\d{{4}}"
    r"|(?:1800|2131)\d{11}"
    rf"|3[47]\d\d{_SEP}\d{{6}}{_SEP}\d{{5}}"
    rf"|3(?:0[0-5]|[689]\d)\d{_SEP}\d{{6}}{_SEP}\d{{4}}"
    r"|4\d{12}(?:\d{6})?|(?:5[06-9]|6\d)\d{10,17}|0604\d{8,15})"
    r"(?![A-Za-z0-9]|\.\d)"
)

# Lengths of IBANs by country (the registry of ISO 13616).
_IBAN_LENGTH = {
    country: int(length)
    for country, length in re.findall(
        r"(\w\w)(\d\d)",
        "AD24 AE23 AL28 AT20 AZ28 BA20 BE16 BG22 BH22 BI27 BR29 BY28 CH21 CR22 CY28 CZ24 DE22 DJ27 DK18 DO28 EE20 EG29 "
        "ES24 FI18 FK18 FO18 FR27 GB22 GE22 GI23 GL18 GR27 GT28 HN28 HR21 HU28 IE22 IL23 IQ23 IS26 IT27 JO30 KW30 KZ20 "
        "LB28 LC32 LI21 LT20 LU20 LV21 LY25 MC27 MD24 ME22 MK19 MN20 MR27 MT31 MU30 NI28 NL18 NO15 OM23 PK24 PL28 PS29 "
        "PT25 QA29 RO24 RS22 RU33 SA24 SC31 SD18 SE24 SI19 SK24 SM27 SO23 ST25 SV28 TL23 TN24 TR26 UA29 VA22 VG24 XK20 "
        "YE30",
    )
}
_IBAN = r"(?<![A-Za-z0-9])(?P<head>[A-Z]{2}\d{2})(?=[ -]?[A-Za-z0-9]{4})(?=(?P<rest>(?:[ -]?[A-Za-z0-9]){11,29}))"

_PHONE = re.compile(
    r"(?<![\w.+/#=%-])(?<!\d[ ,:])(?:"
    r"\+\d{1,3}(?:[ .\-/]{0,2}\(?\d{1,5}\)?){2,6}"  # +49 (0) 30 123456
    r"|00[1-9]\d{0,2}(?:[ .\-/]{1,2}\(?\d{1,5}\)?){1,5}[ .\-/]?\d{2,9}"  # 0049 30 123456
    r"|(?:1[ .-])?\(?[2-9]\d\d(?:\) ?|[.-])[2-9]\d\d[ .-]\d{4}"  # (415) 555-0132
    r"|\(\d{2,5}\) ?\d{3,5}[ -]?\d{2,5}(?:[ -]?\d{2,4})?"  # (030) 123456, (11) 91234-5678
    r"|0[1-9](?:[ .-]\d\d){4}"  # 01 23 45 67 89
    r"|0[1-9]\d{1,3}[ /-]{1,3}\d{3,4}[ -]?\d{3,5}(?![ -]?\d)"  # 020 7946 0958, 0171/1234567
    r"|07\d{3} ?\d{6}|06[ -]\d{8}"
    r")(?:(?: ?(?:x|ext\.?) ?)\d{1,5})?(?![\w%]|[.:/-]\d)"
)
# After a word that announces a phone number, any grouping matches.
_PHONE_AFTER_WORD = re.compile(
    r"(?<![A-Za-z])(?:dial|ring|phones?|tele(?:ph|f)\w{0,8}|tel|t[ée]l(?:[ée]phone)?|mobile?|m[óo]vil"
    r"|cell(?:ular)?|celular|handy|call(?: me)?"
    r"|fax|whatsapp|sms|text(?: me)?|msisdn|hotline|rufnummer|portable|gsm|contact[ _-]?n(?=umber|o\b|r\b))"
    r"[^\W\d]{0,12}(?: [^\W\d]{1,12}){0,2}[\"'\]]{0,2}\s{0,2}[:=.,>]{0,2}\s{0,2}\\?[\"']?\s?"
    r"((?:\+|\(|00)?\d(?:[ .()/-]{0,2}\d){6,13}(?: ?(?:x|ext\.?) ?\d{1,6})?)(?![\w%]|[.:]\d)",
    re.IGNORECASE,
)
_EXTENSION = re.compile(r"(?:x|ext).*", re.IGNORECASE)
_NO_PHONE = re.compile(
    r"(?:order|invoice|ticket|tracking|serial|isbn|issn|doi|part|version|sku|case|ref|model|build|rev|no\.?|#|id|date"
    r"|account|page|lines?|range|port|batch|at)\W{0,3}\s?$",
    re.IGNORECASE,
)
_DATE = re.compile(r"(?:19|20)\d\d[-/. ](?:0\d|1[0-2])|\d\d?[./-]\d\d?[./-](?:19|20)\d\d")


def _iban(flags: int) -> Finder:
    """Build a rule's `find` for account numbers in capitals; with IGNORECASE also in lower case."""
    written = re.compile(_IBAN, flags)

    def find(text: str, low: int, high: int) -> Iterator[tuple[int, int]]:
        for match in written.finditer(text, low, high):
            start, end = match.start(), match.end("head")
            length = _IBAN_LENGTH.get(text[start : start + 2].upper())
            if length is None:
                continue
            count = 4
            while count < length and end < match.end("rest"):
                count += text[end] not in " -"
                end += 1
            value = re.sub(r"[ -]", "", text[start:end])
            whole = count == length and not text[end : end + 1].isalnum()
            if whole and mod97(value.upper()):
                yield start, end

    return find


def _card(text: str, start: int, end: int) -> bool:
    return luhn(text[start:end])


def _phone(text: str, low: int, high: int) -> Iterator[tuple[int, int]]:
    for match in _PHONE.finditer(text, low, high):
        start, end = match.span()
        value = match.group()
        count = sum(character.isdigit() for character in value)
        if value.count("(") != value.count(")"):
            if value[-1] == ")":
                end -= 1
            elif value[0] == "(":
                start += 1
        if not 8 <= count <= 17 or _DATE.match(value):
            continue
        if value[0] == "+" or not has_context_before(text, start, _NO_PHONE, 16):
            yield start, end


def _phone_after_word(text: str, low: int, high: int) -> Iterator[tuple[int, int]]:
    for match in _PHONE_AFTER_WORD.finditer(text, low, high):
        value = _EXTENSION.sub("", match.group(1))
        if 7 <= sum(character.isdigit() for character in value) <= 15 and not _DATE.match(value):
            yield match.span(1)


NUMBERS = (
    pattern_rule("card", 40, _CARD, _card, "digits"),
    Rule("iban", 35, _iban(0), relax(_IBAN), kind="digits"),
    # In lower case only if the text contains "iban".
    Rule("iban", 35, _iban(re.IGNORECASE), relax("iban", re.IGNORECASE), kind="words"),
    Rule("phone", 60, _phone, relax(_PHONE.pattern), max_length(_PHONE.pattern), "digits"),
    Rule(
        "phone",
        60,
        _phone_after_word,
        relax(_PHONE_AFTER_WORD.pattern, re.IGNORECASE),
        max_length(_PHONE_AFTER_WORD.pattern),
        "words",
    ),
)

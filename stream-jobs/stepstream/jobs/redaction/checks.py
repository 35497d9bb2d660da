"""Verify check digits of cards, accounts and national ids, given as digits and upper-case letters, no separators."""

from math import log2

_VERHOEFF_D = (
    "0123456789", "1234067895", "2340178956", "3401289567", "4012395678",
    "5987604321", "6598710432", "7659821043", "8765932104", "9876543210",
)  # fmt: skip
_VERHOEFF_P = (
    "0123456789", "1576283094", "5803796142", "8916043527", "9453126870", "4286573901", "2793806415", "7046913258",
)  # fmt: skip
_IT_ODD = (1, 0, 5, 7, 9, 13, 15, 17, 19, 21, 2, 4, 18, 20, 11, 3, 6, 8, 12, 14, 16, 10, 22, 25, 24, 23)
_ES_LETTERS = "TRWAGMYFPDXBNJZSQVHLCKE"
_MONTH_DAYS = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


def luhn(number: str) -> bool:
    """Return True if the digits of a number pass the check of ISO/IEC 7812 (payment cards)."""
    digits = [int(character) for character in number if character.isdigit()]
    doubled = [sum(divmod(2 * digit, 10)) for digit in digits[-2::-2]]
    return (sum(digits[-1::-2]) + sum(doubled)) % 10 == 0 and any(digits)


def mod97(account: str) -> bool:
    """Return True if an IBAN passes the check of ISO 7064 over its letters and digits."""
    return int("".join(str(int(character, 36)) for character in account[4:] + account[:4])) % 97 == 1


def mod11_10(digits: str) -> bool:
    """ISO 7064 MOD 11,10: the last digit checks the others (German tax ids)."""
    product = 10
    for digit in digits[:-1]:
        total = (int(digit) + product) % 10 or 10
        product = total * 2 % 11
    return (11 - product) % 10 == int(digits[-1])


def verhoeff(digits: str) -> bool:
    """Verhoeff's check over a dihedral group (Aadhaar)."""
    check = "0"
    for place, digit in enumerate(reversed(digits)):
        check = _VERHOEFF_D[int(check)][int(_VERHOEFF_P[place % 8][int(digit)])]
    return check == "0"


def weighted(digits: str, weights: tuple[int, ...], modulus: int) -> int:
    """Return the weighted sum of the first digits modulo `modulus`."""
    return sum(int(digit) * weight for digit, weight in zip(digits, weights, strict=False)) % modulus


def german_tax_id(digits: str) -> bool:
    """Steuer-ID: of its first ten digits, exactly one occurs two or three times."""
    repeats = [digits[:10].count(digit) for digit in set(digits[:10])]
    repeated = [times for times in repeats if times > 1]
    return digits[0] != "0" and len(repeated) == 1 and repeated[0] <= 3 and mod11_10(digits)


def french_nir(number: str) -> bool:
    """NIR with its key of two digits; Corsica's departments 2A and 2B count as 19 and 18."""
    body = number[:13].replace("2A", "19").replace("2B", "18")
    return body.isdigit() and 97 - int(body) % 97 == int(number[13:])


def spanish_id(number: str) -> bool:
    """DNI (8 digits, letter) or NIE (X, Y or Z, 7 digits, letter)."""
    digits = {"X": "0", "Y": "1", "Z": "2"}.get(number[0], number[0]) + number[1:-1]
    return _ES_LETTERS[int(digits) % 23] == number[-1]


def italian_code(number: str) -> bool:
    """Codice fiscale: the last letter checks the fifteen characters before it."""
    total = 0
    for place, character in enumerate(number[:15]):
        value = int(character, 36) - 10 if character.isalpha() else int(character)
        total += value if place % 2 else _IT_ODD[value]
    return chr(ord("A") + total % 26) == number[15]


def dutch_bsn(digits: str) -> bool:
    """The eleven test; nine digits."""
    return any(map(int, digits)) and weighted(digits, (9, 8, 7, 6, 5, 4, 3, 2, -1), 11) == 0


def brazilian_cpf(digits: str) -> bool:
    """CPF: two check digits; eleven equal digits pass the sum and are not valid."""
    for length in (9, 10):
        rest = weighted(digits[:length], tuple(range(length + 1, 1, -1)), 11)
        if int(digits[length]) != (0 if rest < 2 else 11 - rest):
            return False
    return len(set(digits)) > 1


def belgian_number(digits: str) -> bool:
    """Rijksregisternummer: 97 minus the remainder; for births from 2000 on with a 2 in front."""
    return any(97 - int(prefix + digits[:9]) % 97 == int(digits[9:]) for prefix in ("", "2"))


def swiss_ahv(digits: str) -> bool:
    """AHV number: the check digit of EAN-13."""
    return (10 - weighted(digits[:12], (1, 3) * 6, 10)) % 10 == int(digits[12])


def chinese_id(number: str) -> bool:
    """Resident identity: ISO 7064 MOD 11-2 over 17 digits, X for ten, and a date of birth."""
    weights = (7, 9, 10, 5, 8, 4, 2, 1, 6, 3, 7, 9, 10, 5, 8, 4, 2)
    return "10X98765432"[weighted(number[:17], weights, 11)] == number[17] and is_day(number[10:14])


def korean_rrn(digits: str) -> bool:
    """Resident registration number: weighted sum, and a date of birth."""
    rest = weighted(digits[:12], (2, 3, 4, 5, 6, 7, 8, 9, 2, 3, 4, 5), 11)
    return (11 - rest) % 10 == int(digits[12]) and is_day(digits[2:6])


def polish_pesel(digits: str) -> bool:
    """PESEL: weighted sum; the month carries the century."""
    rest = weighted(digits[:10], (1, 3, 7, 9, 1, 3, 7, 9, 1, 3), 10)
    return (10 - rest) % 10 == int(digits[10]) and is_day(f"{int(digits[2:4]) % 20:02}{digits[4:6]}")


def swedish_number(digits: str) -> bool:
    """Personnummer: Luhn over its last ten digits, and a date of birth."""
    return luhn(digits[-10:]) and is_day(digits[-8:-4])


def singapore_nric(number: str) -> bool:
    """NRIC or FIN (S, T, F, G): weighted sum to a letter."""
    rest = (weighted(number[1:8], (2, 7, 6, 5, 4, 3, 2), 11) + (4 if number[0] in "TG" else 0)) % 11
    return ("JZIHGFEDCBA" if number[0] in "ST" else "XWUTRQPNMLK")[rest] == number[8]


def uk_nhs(digits: str) -> bool:
    """NHS number: ten digits, modulo 11."""
    rest = 11 - weighted(digits[:9], (10, 9, 8, 7, 6, 5, 4, 3, 2), 11)
    return rest % 11 == int(digits[9]) and rest != 10


def australian_tfn(digits: str) -> bool:
    """Tax file number, nine digits."""
    return weighted(digits, (1, 4, 3, 7, 5, 8, 6, 9, 10), 11) == 0


def is_day(month_day: str) -> bool:
    """Return True if MMDD is a day of some year."""
    month, day = int(month_day[:2]), int(month_day[2:])
    return 1 <= month <= 12 and 1 <= day <= _MONTH_DAYS[month - 1]


def entropy(text: str) -> float:
    """Return the Shannon entropy of a text's characters, in bits per character."""
    size = len(text)
    return -sum(count / size * log2(count / size) for count in map(text.count, set(text)))

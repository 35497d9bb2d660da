# ruff: noqa: E501 - tables of phrases and formats read best one to a line
"""Draw synthetic values of each kind from a seeded generator; none belongs to a person."""

import random
import string
from collections.abc import Callable

from stepstream.jobs.redaction import checks

UPPER, LOWER, DIGITS = string.ascii_uppercase, string.ascii_lowercase, string.digits
ALNUM = string.ascii_letters + DIGITS
BASE64 = ALNUM + "+/"
URLSAFE = ALNUM + "-_"
HEX = "0123456789abcdef"
_FIRST = [
    "ada",
    "grace",
    "linus",
    "maria",
    "juan",
    "chen",
    "fatima",
    "olga",
    "ivan",
    "nina",
    "pedro",
    "lucía",
    "jürgen",
    "zoë",
    "aisha",
    "kenji",
    "priya",
    "tom",
]
_LAST = [
    "lovelace",
    "hopper",
    "garcía",
    "müller",
    "schmidt",
    "rossi",
    "silva",
    "kumar",
    "tanaka",
    "novak",
    "jansen",
    "o'neil",
    "smith",
    "dubois",
    "lee",
]
_HOSTS = [
    "example.org",
    "mail.example.com",
    "acme-corp.io",
    "uni-bonn.de",
    "company.co.uk",
    "beta.dev",
    "orange.fr",
    "corp.local.net",
]
Value = Callable[[random.Random], str]


def some(rng: random.Random, alphabet: str, size: int) -> str:
    """Return `size` characters of an alphabet."""
    return "".join(rng.choices(alphabet, k=size))


def mixed(rng: random.Random, alphabet: str, size: int) -> str:
    """Return characters with at least one digit, one upper and one lower case letter."""
    text = [*some(rng, alphabet, size - 3), rng.choice(DIGITS), rng.choice(UPPER), rng.choice(LOWER)]
    rng.shuffle(text)
    return "".join(text)


def passing(rng: random.Random, make: Value, check: Callable[[str], bool]) -> str:
    """Draw until a check passes."""
    while not check(value := make(rng)):
        pass
    return value


def email(rng: random.Random) -> str:
    first, last = rng.choice(_FIRST), rng.choice(_LAST).replace("'", "")
    local = rng.choice(
        [f"{first}.{last}", f"{first[0]}{last}", f"{first}_{last}{rng.randrange(99)}", f"{first}+{last}"]
    )
    host = rng.choice(_HOSTS)
    return rng.choice(
        [f"{local}@{host}", f"{local}@{host}", f"{local.title()}@{host}", f"{first}-{rng.randrange(9999)}@{host}"]
    )


def phone(rng: random.Random) -> str:
    d: Callable[[int], str] = lambda n: some(rng, DIGITS, n)  # noqa: E731
    n: Callable[[], str] = lambda: rng.choice("23456789")  # noqa: E731
    ways: list[Callable[[], str]] = [
        lambda: f"+1 {n()}{d(2)}-{n()}{d(2)}-{d(4)}", lambda: f"+1-{n()}{d(2)}-{n()}{d(2)}-{d(4)}",
        lambda: f"({n()}{d(2)}) {n()}{d(2)}-{d(4)}", lambda: f"{n()}{d(2)}-{n()}{d(2)}-{d(4)}",
        lambda: f"+44 20 7{d(3)} {d(4)}", lambda: f"+44 7{d(3)} {d(6)}", lambda: f"020 7{d(3)} {d(4)}",
        lambda: f"+49 {rng.choice(['30', '89', '171'])} {d(7)}", lambda: f"+49 (0) 30 {d(6)}",
        lambda: f"+33 {rng.randrange(1, 8)} {d(2)} {d(2)} {d(2)} {d(2)}", lambda: f"0{rng.randrange(1, 8)} {d(2)} {d(2)} {d(2)} {d(2)}",
        lambda: f"+34 6{d(2)} {d(3)} {d(3)}", lambda: f"+91 9{d(4)} {d(5)}", lambda: f"+55 11 9{d(4)}-{d(4)}",
        lambda: f"+31 6 {d(8)}", lambda: f"+4915{d(9)}", lambda: f"+1{n()}{d(2)}{n()}{d(6)}", lambda: f"0049 30 {d(7)}",
    ]  # fmt: skip
    return rng.choice(ways)()


def phone_digits(rng: random.Random) -> str:
    """Return a number as a telephone column stores it; only the context identifies it."""
    ways: list[Callable[[], str]] = [
        lambda: f"{rng.choice('23456789')}{some(rng, DIGITS, 9)}",
        lambda: f"06{some(rng, DIGITS, 8)}",
        lambda: f"6{some(rng, DIGITS, 2)} {some(rng, DIGITS, 3)} {some(rng, DIGITS, 3)}",
    ]
    return rng.choice(ways)()


def card(rng: random.Random) -> str:
    kind = rng.choice(["4", "4", "51", "54", "2221", "34", "37", "6011", "36"])
    size = {"34": 15, "37": 15, "36": 14}.get(kind, 16)
    digits = passing(rng, lambda r: kind + some(r, DIGITS, size - len(kind)), checks.luhn)
    cuts = {15: (4, 10), 14: (4, 10), 16: (4, 8, 12)}[size]
    parts = [digits[a:b] for a, b in zip((0, *cuts), (*cuts, size), strict=True)]
    return rng.choice(["", " ", "-", " "]).join(parts)


def iban(rng: random.Random) -> str:
    body, country = rng.choice([(some(rng, DIGITS, 18), "DE"), ("NWBK" + some(rng, DIGITS, 14), "GB"),
                                (some(rng, DIGITS, 20), "ES"), ("ABNA" + some(rng, DIGITS, 10), "NL"),
                                (some(rng, DIGITS, 10) + some(rng, DIGITS + UPPER, 11) + some(rng, DIGITS, 2), "FR"),
                                (rng.choice(UPPER) + some(rng, DIGITS, 22), "IT")])  # fmt: skip
    text = next(t for n in range(98) if checks.mod97(t := f"{country}{n:02}{body}"))
    return rng.choice([text, " ".join(text[i : i + 4] for i in range(0, len(text), 4))])


def us_ssn(rng: random.Random) -> str:
    return f"{rng.randrange(1, 666):03}-{rng.randrange(1, 99):02}-{rng.randrange(1, 9999):04}"


def uk_nino(rng: random.Random) -> str:
    text = rng.choice(["AB", "CE", "JG", "LM", "WK"]) + some(rng, DIGITS, 6) + rng.choice("ABCD")
    return rng.choice([text, f"{text[:2]} {text[2:4]} {text[4:6]} {text[6:8]} {text[8]}"])


def de_tax_id(rng: random.Random) -> str:
    text = passing(rng, lambda r: r.choice("123456789") + some(r, DIGITS, 10), checks.german_tax_id)
    return rng.choice([text, f"{text[:2]} {text[2:5]} {text[5:8]} {text[8:]}"])


def fr_nir(rng: random.Random) -> str:
    body = f"{rng.choice('12')}{rng.randrange(100):02}{rng.randrange(1, 13):02}{rng.randrange(1, 96):02}{some(rng, DIGITS, 6)}"
    key = f"{97 - int(body) % 97:02}"
    return rng.choice([body + key, f"{body[0]} {body[1:3]} {body[3:5]} {body[5:7]} {body[7:10]} {body[10:13]} {key}"])


def es_id(rng: random.Random) -> str:
    head = rng.choice([some(rng, DIGITS, 8), rng.choice("XYZ") + some(rng, DIGITS, 7)])
    return next(head + letter for letter in UPPER if checks.spanish_id(head + letter))


def it_fiscal_code(rng: random.Random) -> str:
    head = some(rng, UPPER, 6) + some(rng, DIGITS, 2) + rng.choice("ABCDEHLMPRST") + f"{rng.randrange(1, 29):02}"
    head += rng.choice("ABCDEFGHL") + some(rng, DIGITS, 3)
    return next(head + letter for letter in UPPER if checks.italian_code(head + letter))


def nl_bsn(rng: random.Random) -> str:
    return passing(rng, lambda r: some(r, DIGITS, 9), checks.dutch_bsn)


def br_cpf(rng: random.Random) -> str:
    t = passing(rng, lambda r: some(r, DIGITS, 11), checks.brazilian_cpf)
    return f"{t[:3]}.{t[3:6]}.{t[6:9]}-{t[9:]}"


def in_aadhaar(rng: random.Random) -> str:
    t = passing(rng, lambda r: r.choice("23456789") + some(r, DIGITS, 11), checks.verhoeff)
    return f"{t[:4]} {t[4:8]} {t[8:]}"


def in_pan(rng: random.Random) -> str:
    return some(rng, UPPER, 3) + rng.choice("PCHF") + rng.choice(UPPER) + some(rng, DIGITS, 4) + rng.choice(UPPER)


def pl_pesel(rng: random.Random) -> str:
    return passing(rng, lambda r: f"{r.randrange(100):02}{r.randrange(1, 13):02}{r.randrange(1, 29):02}{some(r, DIGITS, 5)}", checks.polish_pesel)  # fmt: skip


def ip(rng: random.Random) -> str:
    v4 = f"{rng.choice([10, 34, 81, 93, 172, 192, 203])}.{rng.randrange(256)}.{rng.randrange(256)}.{rng.randrange(1, 255)}"
    group: Callable[[], str] = lambda: f"{rng.randrange(65536):x}"  # noqa: E731
    return rng.choice([v4, v4, v4, f"2001:db8:{group()}:{group()}::{group()}", "2a02:" + ":".join(group() for _ in range(7)), f"fe80::{group()}:{group()}"])  # fmt: skip


def private_key(rng: random.Random) -> str:
    kind = rng.choice(["RSA ", "EC ", "", "OPENSSH "])
    body = "\n".join(some(rng, BASE64, 64) for _ in range(rng.randrange(2, 6)))
    return f"-----BEGIN {kind}PRIVATE KEY-----\n{body}\n{some(rng, BASE64, 30)}==\n-----END {kind}PRIVATE KEY-----"


def jwt(rng: random.Random) -> str:
    return f"eyJ{some(rng, ALNUM, 33)}.eyJ{some(rng, URLSAFE, 70)}.{some(rng, URLSAFE, 43)}"


def password(rng: random.Random) -> str:
    word = rng.choice(["Summer", "hunter", "Tr0ub4dor", "correcthorse", "Wint3r", "S3cure", "dragon"])
    return rng.choice([f"{word}{rng.randrange(10, 9999)}{rng.choice('!#_@%*')}", mixed(rng, ALNUM + "!#%*_", 14), f"{word}-{rng.randrange(99)}"])  # fmt: skip


KINDS: dict[str, Value] = {
    "email": email, "phone": phone, "phone_digits": phone_digits, "card": card, "iban": iban, "us_ssn": us_ssn,
    "uk_nino": uk_nino, "de_tax_id": de_tax_id, "fr_nir": fr_nir, "es_id": es_id, "it_fiscal_code": it_fiscal_code,
    "nl_bsn": nl_bsn, "br_cpf": br_cpf, "in_aadhaar": in_aadhaar, "in_pan": in_pan, "pl_pesel": pl_pesel, "ip": ip,
    "private_key": private_key, "jwt": jwt, "password": password,
    "aws_key": lambda r: r.choice(["AKIA", "ASIA"]) + some(r, UPPER + "234567", 16),
    "aws_secret": lambda r: mixed(r, BASE64, 40),
    "github_token": lambda r: r.choice(["ghp_", "gho_", "ghs_"]) + some(r, ALNUM, 36),
    "github_pat": lambda r: f"github_pat_{some(r, ALNUM, 22)}_{some(r, ALNUM, 59)}",
    "gitlab_token": lambda r: "glpat-" + mixed(r, URLSAFE, 20),
    "slack_token": lambda r: f"xoxb-{some(r, DIGITS, 12)}-{some(r, DIGITS, 13)}-{some(r, ALNUM, 24)}",
    "slack_webhook": lambda r: f"https://hooks.slack.com/services/T{some(r, UPPER + DIGITS, 8)}/B{some(r, UPPER + DIGITS, 10)}/{some(r, ALNUM, 24)}",
    "stripe_key": lambda r: r.choice(["sk_live_", "rk_live_", "sk_test_"]) + some(r, ALNUM, 24),
    "openai_key": lambda r: r.choice(["sk-proj-" + mixed(r, URLSAFE, 100), "sk-" + some(r, ALNUM, 20) + "T3BlbkFJ" + some(r, ALNUM, 20)]),
    "anthropic_key": lambda r: "sk-ant-api03-" + mixed(r, URLSAFE, 93) + "AA",
    "google_key": lambda r: "AIza" + some(r, URLSAFE, 35),
    "google_oauth": lambda r: "ya29." + mixed(r, URLSAFE, 120),
    "hf_token": lambda r: "hf_" + some(r, ALNUM, 34),
    "npm_token": lambda r: "npm_" + some(r, ALNUM, 36),
    "pypi_token": lambda r: "pypi-AgEIcHlwaS5vcmc" + some(r, URLSAFE, 120),
    "twilio_key": lambda r: "SK" + some(r, HEX, 32),
    "sendgrid_key": lambda r: f"SG.{some(r, URLSAFE, 22)}.{some(r, URLSAFE, 43)}",
    "azure_storage_key": lambda r: mixed(r, BASE64, 86) + "==",
    "secret": lambda r: r.choice([mixed(r, ALNUM, 32), some(r, HEX, 40), mixed(r, URLSAFE, 43), mixed(r, ALNUM, 24)]),
}  # fmt: skip
NAMES: Value = lambda r: f"{r.choice(_FIRST).title()} {r.choice(_LAST).title()}"  # noqa: E731


NEGATIVES: dict[str, Value] = {
    "uuid": lambda r: "-".join(some(r, HEX, n) for n in (8, 4, 4, 4, 12)),
    "sha": lambda r: some(r, HEX, 40),
    "sha256": lambda r: some(r, HEX, 64),
    "short_sha": lambda r: some(r, HEX, 7),
    "version": lambda r: f"{r.randrange(20)}.{r.randrange(40)}.{r.randrange(40)}",
    "version4": lambda r: r.choice(["version {}", "v{}", "numpy=={}", "Chrome/{}", "release {}"]).format(f"{r.randrange(1, 140)}.{r.randrange(40)}.{r.randrange(40)}.{r.randrange(200)}"),
    "order": lambda r: r.choice([f"ORD-{some(r, DIGITS, 8)}", f"{some(r, DIGITS, 3)}-{some(r, DIGITS, 7)}-{some(r, DIGITS, 7)}", some(r, DIGITS, 10)]),
    "time": lambda r: f"2026-{r.randrange(1, 13):02}-{r.randrange(1, 29):02}T{r.randrange(24):02}:{r.randrange(60):02}:{r.randrange(60):02}.{some(r, DIGITS, 3)}Z",
    "day_time": lambda r: f"2026-{r.randrange(1, 13):02}-{r.randrange(1, 29):02} {r.randrange(24):02}:{r.randrange(60):02}:{r.randrange(60):02}",
    "epoch": lambda r: str(r.randrange(1_600_000_000_000, 1_900_000_000_000)),
    "epoch_s": lambda r: str(r.randrange(1_600_000_000, 1_900_000_000)),
    "math": lambda r: f"{r.random() * 1000:.12f}",
    "number": lambda r: f"{r.randrange(10**6, 10**8):,}",
    "image": lambda r: "iVBORw0KGgoAAAANSUhEUgAA" + some(r, BASE64, 160),
    "float_list": lambda r: ", ".join(f"{r.uniform(-1, 1):.6f}" for _ in range(6)),
    "call_id": lambda r: "call_" + some(r, ALNUM, 24),
    "range": lambda r: f"{r.randrange(100, 999)}-{r.randrange(1000, 9999)}",
    "path": lambda r: f"/srv/app/{some(r, LOWER, 8)}/{some(r, LOWER, 12)}_{r.randrange(99)}/main.py",
    "code": lambda r: r.choice(["password = get_password(user)", "token: str | None = None", "max_tokens=4096", "api_key=os.environ['API_KEY']",
             "self._secret = secret", "def reset_password(self, password: str) -> bool:", "if not token: raise AuthError('token expired')",
             '"total_tokens": 1532, "prompt_tokens": 1200', "std::vector<int>::iterator it;", "password: ${DB_PASSWORD}", "@app.get('/items')",
             "Authorization: Bearer $TOKEN", "from secrets import token_urlsafe", "x = a @ b.T", "const secretName = config.get('name')",
             "token_count: 812", "next_page_token: eyAsd93kfjKKd0sfj3", "postgres://user:password@localhost/db", "session_id is required"]),
    "package": lambda r: f"lodash@{r.randrange(9)}.{r.randrange(20)}.{r.randrange(20)}",
    "icon": lambda r: f"icon-{some(r, LOWER, 5)}@2x.png",
    "isbn": lambda r: f"978-{r.randrange(10)}-{some(r, DIGITS, 2)}-{some(r, DIGITS, 6)}-{r.randrange(10)}",
    "ray_id": lambda r: some(r, HEX, 16),
    "coordinates": lambda r: f"{r.uniform(-90, 90):.6f}, {r.uniform(-180, 180):.6f}",
    "table": lambda r: " ".join(some(r, DIGITS, r.randrange(1, 5)) for _ in range(8)),
}  # fmt: skip

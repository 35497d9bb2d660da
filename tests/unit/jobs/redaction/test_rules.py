"""Each rule finds its values and ignores similar ones."""

import re
from collections import Counter

import pytest

from stepstream.jobs.redaction import RedactionOptions, Redactor
from stepstream.jobs.redaction.catalogue import RULES

REDACTOR = Redactor(b"key", RedactionOptions(names=True, on=frozenset({"mac"})))
HEX32 = "0123456789abcdef" * 2
MIXED40 = "aB3dE6gH9jK2mN5pQ8sT1vW4yZ7bC0eF3hJ6kL9n"
# Numbers from the documents that describe each id, or made by their check digits: nobody's.
POSITIVE = {
    "email": ["write to ada@example.org", "Müller <jürgen.müller@bücher.example>", "mailto:a.b+c@sub.example.co.uk"],
    "phone": ["+1 415-555-0132", "(415) 555-0132", "tel: 4155550132",
              "+49 (0) 30 123456", "01 23 45 67 89", "0049 30 1234567"],
    "card": ["4111 1111 1111 1111", "3782 822463 10005", "6011-1111-1111-1117", "pay 4111111111111111 12/29"],
    "iban": ["DE89 3704 0044 0532 0130 00", "GB82WEST12345698765432", "iban: de89370400440532013000"],
    "us_ssn": ["078-05-1120", "ssn 078051120"],
    "us_itin": ["912-70-1234"],
    "uk_nino": ["QQ123456C".replace("QQ", "AB"), "AB 12 34 56 C"],
    "uk_nhs": ["NHS 943 476 5919"],
    "de_tax_id": ["86095742719", "86 095 742 719"],
    "fr_nir": ["1 84 12 76 451 089 46", "184127645108946"],
    "es_id": ["12345678Z", "X1234567L", "١٢٣٤٥٦٧٨Z"],
    "it_fiscal_code": ["RSSMRA85T10A562S"],
    "nl_bsn": ["BSN 111222333"],
    "br_cpf": ["111.444.777-35", "cpf 11144477735"],
    "in_aadhaar": ["2341 2341 2346", "aadhaar 234123412346"],
    "in_pan": ["ABCPE1234F"],
    "pl_pesel": ["PESEL 44051401359"],
    "se_personnummer": ["811218-9876"],
    "ca_sin": ["SIN 046 454 286"],
    "au_tfn": ["TFN 123 456 782"],
    "ch_ahv": ["756.9217.0769.85"],
    "be_national": ["85.07.30-033.28"],
    "cn_id": ["11010519491231002X"],
    "kr_rrn": ["900101-1234568"],
    "mx_curp": ["HEGG560427MVZRRL04"],
    "sg_nric": ["S1234567D"],
    "ip": ["from 192.168.10.4", "2001:db8:85a3::8a2e:370:7334", "fe80::1ff:fe23:4567:890a"],
    "mac": ["00:1B:44:11:3A:B7"],
    "name": ["My name is Ada Lovelace.", '{"first_name": "Ada"}', '{"name": "Ada Lovelace"}', "Dear Mrs Hopper"],
    "aws_key": ["AKIAIOSFODNN7EXAMPLE"],
    "aws_secret": [f"aws_secret_access_key = {MIXED40}", f'"SecretAccessKey": "{MIXED40}"'],
    "github_token": ["ghp_" + "a1B2" * 9, "github_pat_" + "x" * 30],
    "gitlab_token": ["glpat-aB3dE6gH9jK2mN5pQ8sT"],
    "slack_token": ["xoxb-123456789012-abcdefghijkl"],
    "slack_webhook": ["https://hooks.slack.com/services/T00000000/B00000000/XXXXXXXXXXXXXXXXXXXXXXXX"],
    "stripe_key": ["sk_live_abcdefghijklmnop1234"],
    "google_key": ["AIza" + "S" * 35],
    "google_oauth": ["GOCSPX-" + "aB3_" * 7],
    "hf_token": ["hf_" + "aB3d" * 8 + "xy"],
    "npm_token": ["npm_" + "aB3d" * 9],
    "pypi_token": ["pypi-AgEIcHlwaS5vcmc" + "aB3d" * 20],
    "twilio_key": ["SK" + HEX32],
    "sendgrid_key": ["SG." + "aB3dE6gH9jK2mN5pQ8sT1v" + "." + "aB3dE6gH9jK2mN5pQ8sT1vW4yZ7bC0eF3hJ6kL9nP2r"],
    "azure_key": ["AccountKey=" + "aB3d" * 21 + "aB==", "xyz8Q~" + "aB3d" * 8 + "abc"],
    "api_key": ["sk-ant-api03-" + "aB3d_" * 18, "sk-proj-abcdefghijklmnopqrstu123"],
    "jwt": ["eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.abc_DEF-123"],
    "vendor_token": ["dapi" + HEX32, "hvs." + "aB3d" * 8, "key-" + HEX32, "123456789:AA" + "aB3" * 11],
    "bearer": ["Authorization: Bearer abcdefghijklmnop.qrstuv==", "bearer a1b2c3d4e5f6a7b8"],
    "authorization": ["Authorization: Basic dXNlcjpwYXNzd29yZA=="],
    "connection_string": ["postgres://svc:S3cretPw@db/app", "redis://:hunter22@cache:6379"],
    "password": ["password=hunter2!", '"password": "hunter22"', "DB_PASSWORD=correcthorse", "--password dragon",
                 "Server=x;Password=Ab1c;User=y", "mysql -u root -pS3cret app", "my password is hunter2"],
    "secret": [f"api_key={MIXED40}", f'"client_secret": "{MIXED40}"', f"token: {MIXED40}", f"x-api-key: {HEX32}"],
    "private_key": ["-----BEGIN RSA PRIVATE KEY-----\nMIIE\nabc=\n-----END RSA PRIVATE KEY-----",
                    "-----BEGIN PRIVATE KEY-----\\nMIIE\\nabc=\\n-----END PRIVATE KEY-----"],
}  # fmt: skip
NEGATIVE = [
    "user@localhost", "icon@2x.png", "git@github.com:org/repo.git", "@app.route('/x')", "lodash@4.17.21", "a @ b.T",
    "4111 1111 1111 1112", "DE89 3704 0044 0532 0130 01", "000-12-3456", "12345678A", "86095742718", "111.444.777-36",
    "version 1.2.3.4", "Chrome/120.0.6099.71", "numpy==1.26.4.1", "127.0.0.1", "12:34:56", "std::vector<int>::iterator",
    "2026-11-21 20:28:58", "2026-11-21T20:28:58.123Z", "1760000000000", "order 0301-2345678", "3.14159265358979",
    "550e8400-e29b-41d4-a716-446655440000", "da39a3ee5e6b4b0d3255bfef95601890afd80709", "max_tokens=4096",
    '"total_tokens": 1532', "token_count: 812", "next_page_token: eyAsd93kfjKKd0sfj3",
    "password: str", "password = None", "<password>${DB_PASSWORD}</password>", "x;password=read_it(4, y);",
    "login?user=x&password=$PASSWORD&y=1", "PASSWORD=$HOME/.pw;", "the secret key at 12345",
    "contact number of days: 12",
    "password = get_password(user)", "password: ${DB_PASSWORD}", "password is required", "api_key=os.environ['KEY']",
    "Authorization: Bearer $TOKEN", "self._secret = secret", "secret_name = 'db-credentials-2'", "sk-learn, task-force",
    "https://user@host/path", "postgres://user:password@localhost/db", '{"name": "search"}', "bearer authentication",
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk",
]  # fmt: skip


@pytest.mark.parametrize(("rule", "text"), [(rule, text) for rule, texts in POSITIVE.items() for text in texts])
def test_a_value_is_found_by_its_rule(rule: str, text: str) -> None:
    found: Counter[str] = Counter()
    redacted = REDACTOR.redact(f"well, {text} ok", found)
    assert found == {rule: 1}
    assert f"<{rule.upper()}:" in redacted


def test_every_rule_has_a_case() -> None:
    assert POSITIVE.keys() == RULES


@pytest.mark.parametrize("text", NEGATIVE)
def test_a_similar_text_is_not_redacted(text: str) -> None:
    found: Counter[str] = Counter()
    assert REDACTOR.redact(f"well, {text} ok", found) == f"well, {text} ok"
    assert not found


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("card 4111 1111 1111 1111", "card 4111-1111-1111-1111"),
        ("Ada@Example.org", "ada@example.org"),
        ("+49 (0) 30 123456", "0049 30 123456"),
        ("DE89 3704 0044 0532 0130 00", "iban de89370400440532013000"),
        ("2001:db8:0:0:0:0:0:1", "2001:db8::1"),
    ],
)
def test_all_notations_of_a_value_have_one_pseudonym(one: str, other: str) -> None:
    first, second = (REDACTOR.redact(text, Counter()) for text in (one, other))
    assert first[first.index("<") :] == second[second.index("<") :]


@pytest.mark.parametrize(
    ("before", "value", "after"),
    [
        ("<password>", ")2sH*@(wzA", "</password>"),  # an element ends where its end tag begins
        ("<password>", "&z&XV4wyr9", "</password>"),
        ("user=sa;password=", "(Q8EaMq))v", ";Encrypt=yes"),  # a field of a connection string, at the semicolon
        ("user=sa;password=", "ocSd1U_G(4", ";Encrypt=yes"),
        ("?user=x&password=", ")2&pOyc@*g", "&y=1"),  # a parameter, at an ampersand that begins another one
        ("?user=x&password=", "58RGLRkb(y", "&y=1"),
        ("PASSWORD: ", "$5X$(mhywK", " ok"),  # begins like a variable, and is none
        ("password=", "$pO^m&Pq@9", " ok"),
        ("--account-key ", "AT1h1yl7kF0oL81H55khcUtadBuA7A9fJWSDyOz1", " ok"),  # begins with a word that ends names
        ("PAN=", "060456695679", "\ttrue"),
        ('"contact_number": "', "97 2810-4668", '"'),
        ("contact no. ", "001-311-891-4521x99947", ","),
    ],
)
def test_a_find_ends_where_the_value_ends(before: str, value: str, after: str) -> None:
    redacted = REDACTOR.redact(f"well, {before}{value}{after}", Counter())
    assert re.fullmatch(re.escape(f"well, {before}") + "<[A-Z_]+:[0-9a-f]+>" + re.escape(after), redacted), redacted

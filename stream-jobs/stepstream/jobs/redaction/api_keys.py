"""Find secrets with a distinctive form: keys and tokens in the formats of their issuers."""

import re
from collections.abc import Iterator

from stepstream.jobs.redaction.re2_patterns import relax
from stepstream.jobs.redaction.rule import Rule, pattern_rule

_B, _A = r"(?<![A-Za-z0-9])", r"(?![A-Za-z0-9])"

_PRIVATE_KEY = (
    r"-----BEGIN (?:[A-Z0-9]{1,12} ){0,4}PRIVATE KEY(?: BLOCK)?-----"
    r"(?:[^\"'`]{0,20000}?-----END (?:[A-Z0-9]{1,12} ){0,4}PRIVATE KEY(?: BLOCK)?-----|[^\"'`<]{0,20000})"
)

# Name, pattern. Repetitions are bounded, so that matching stays linear on hostile texts.
_TOKENS: tuple[tuple[str, str], ...] = (
    ("aws_key", rf"{_B}(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{{16}}{_A}"),
    (
        "aws_secret",
        r"(?:AKIA|ASIA)[A-Z0-9]{16}[\"',:;\s|/]{1,6}(?P<value>[A-Za-z0-9/+]{40})(?![A-Za-z0-9/+])",
    ),
    (
        "aws_secret",
        r"(?i:aws_?secret_?(?:access_?)?key|secret[_ -]?access[_ -]?key|aws_secret)[\"']?\s{0,3}[:=,]?>?\s{0,3}"
        r"[\"']?(?P<value>[A-Za-z0-9/+]{40})(?![A-Za-z0-9/+])",
    ),
    (
        "github_token",
        rf"{_B}(?:gh[pousr]_[A-Za-z0-9]{{36,255}}|github_pat_[A-Za-z0-9_]{{22,255}})",
    ),
    (
        "gitlab_token",
        rf"{_B}gl(?:pat|ptt|dt|rt|cbt|ft|imt|agent|oas|soat)-[A-Za-z0-9_-]{{20,255}}(?:\.[A-Za-z0-9_.-]{{2,60}})?",
    ),
    (
        "slack_token",
        rf"{_B}(?:xox[a-z](?:\.xox[a-z])?|xapp)-[A-Za-z0-9-]{{10,255}}",
    ),
    (
        "slack_webhook",
        r"(?:hooks\.slack\.com/(?:services|workflows|triggers)|discord(?:app)?\.com/api/webhooks"
        r"|webhook\.office\.com/webhookb2)/(?P<value>[\w/@-]{20,255})",
    ),
    ("stripe_key", rf"{_B}[sr]k_(?:live|test)_[A-Za-z0-9]{{10,255}}"),
    ("stripe_key", rf"{_B}whsec_[A-Za-z0-9+/=]{{24,255}}"),
    ("google_key", rf"{_B}AIza[A-Za-z0-9_-]{{35}}"),
    ("google_oauth", rf"{_B}(?:ya29\.[A-Za-z0-9_-]{{20,2000}}|GOCSPX-[A-Za-z0-9_-]{{28}})"),
    ("hf_token", rf"{_B}(?:hf_|api_org_)[A-Za-z0-9]{{30,60}}{_A}"),
    ("npm_token", rf"{_B}npm_[A-Za-z0-9]{{36}}{_A}"),
    ("pypi_token", rf"{_B}pypi-Ag[A-Za-z0-9_-]{{40,1000}}"),
    ("twilio_key", rf"{_B}SK[0-9a-fA-F]{{32}}{_A}"),
    ("sendgrid_key", rf"{_B}SG\.[A-Za-z0-9_-]{{16,40}}\.[A-Za-z0-9_-]{{20,80}}"),
    (
        "azure_key",
        r"(?i:(?:AccountKey|SharedAccessKey)\s?=\s?(?P<value>[A-Za-z0-9+/]{40,100}={0,2}))",
    ),
    ("azure_key", r"[?&]sig=(?P<value>[A-Za-z0-9%/+=_-]{30,200})"),
    ("jwt", r"(?<![A-Za-z0-9_-])eyJ[A-Za-z0-9_-]{8,4000}\.[A-Za-z0-9_-]{8,8000}\.?[A-Za-z0-9_.-]{0,4000}"),
    ("vendor_token", rf"{_B}key-[0-9a-f]{{32}}{_A}"),
    ("vendor_token", rf"{_B}do[opr]_v1_[0-9a-f]{{64}}"),
    ("vendor_token", rf"{_B}dapi[0-9a-f]{{32}}(?:-\d)?{_A}"),
    ("vendor_token", rf"{_B}shp(?:at|ca|pa|ss)_[0-9a-fA-F]{{32}}"),
    ("vendor_token", rf"{_B}lin_api_[A-Za-z0-9]{{40}}"),
    ("vendor_token", rf"{_B}ATATT3[A-Za-z0-9_=-]{{50,300}}"),
    ("vendor_token", rf"{_B}glsa_[A-Za-z0-9]{{32}}_[0-9a-fA-F]{{8}}"),
    ("vendor_token", rf"{_B}hv[sbr]\.[A-Za-z0-9_-]{{20,300}}"),
    ("vendor_token", r"(?<![A-Za-z0-9])\d{8,10}:AA[A-Za-z0-9_-]{33}(?![A-Za-z0-9_-])"),
    ("vendor_token", rf"{_B}(?:secret_[A-Za-z0-9]{{43}}|ntn_[A-Za-z0-9]{{40,60}}){_A}"),
    ("vendor_token", rf"{_B}(?:gsk_|xai-)[A-Za-z0-9]{{40,100}}{_A}"),
    ("vendor_token", rf"{_B}r8_[A-Za-z0-9]{{37}}{_A}"),
    ("vendor_token", rf"{_B}PMAK-[0-9a-f]{{24}}-[0-9a-f]{{34}}"),
    ("vendor_token", rf"{_B}NRAK-[A-Z0-9]{{27}}"),
    ("vendor_token", rf"{_B}(?:figd|sntrys|dckr_pat)_[A-Za-z0-9_=+/-]{{20,400}}"),
    ("vendor_token", rf"{_B}[A-Za-z0-9]{{14}}\.atlasv1\.[A-Za-z0-9_=-]{{60,70}}"),
    ("vendor_token", rf"{_B}pat[A-Za-z0-9]{{14}}\.[0-9a-f]{{64}}"),
    ("vendor_token", r"AGE-SECRET-KEY-1[A-Z0-9]{58}"),
    ("vendor_token", rf"{_B}(?:pk_\d{{6,9}}_[A-Z0-9]{{32}}|HRKU-[\w-]{{36,60}})"),
)

_API_KEY = re.compile(rf"{_B}(?:sk|rk|pk)[-_][A-Za-z0-9_-]{{16,300}}")
_SEGMENTS = re.compile(r"[-_]")


def _api_key(text: str, low: int, high: int) -> Iterator[tuple[int, int]]:
    """Yield keys in the format of OpenAI, Anthropic and others; exclude hyphenated words."""
    for match in _API_KEY.finditer(text, low, high):
        value = match.group().rstrip("-_")
        segments = _SEGMENTS.split(value)[1:]
        longest = max(segments, key=len)
        mixed = [s for s in segments if any(map(str.isdigit, s)) and any(map(str.isalpha, s))]
        if len(longest) >= 16 or any(len(segment) >= 8 for segment in mixed) or len(mixed) > 2:
            yield match.start(), match.start() + len(value)


_AZURE = rf"{_B}[A-Za-z0-9_~.-]{{3}}\dQ~[A-Za-z0-9_~.-]{{31,34}}"
_DISCORD = rf"{_B}[MNO][A-Za-z0-9_-]{{23,25}}\.[A-Za-z0-9_-]{{6}}\.[A-Za-z0-9_-]{{27,38}}(?![\w-])"

TOKENS = (
    pattern_rule("private_key", 0, _PRIVATE_KEY),
    *(pattern_rule(name, 10, pattern) for name, pattern in _TOKENS),
    pattern_rule("azure_key", 10, _AZURE),
    pattern_rule("vendor_token", 10, _DISCORD),
    Rule("api_key", 12, _api_key, relax(_API_KEY.pattern)),
)

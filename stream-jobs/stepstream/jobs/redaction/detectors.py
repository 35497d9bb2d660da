"""Wrap the recognisers of Presidio and the plugins of detect-secrets as rules. Both are imported only if enabled."""

import importlib
import importlib.util
import re
from collections.abc import Iterator
from typing import Any

from stepstream.jobs.redaction.options import RedactionError
from stepstream.jobs.redaction.rule import Finder, Rule

_PACKAGES = {"presidio": "presidio_analyzer", "detect_secrets": "detect_secrets"}
_RANK = 80
_THRESHOLD = 0.4
# Omitted: phone numbers (many times slower than all others together; the inline rule finds them), e-mail addresses and
# sites (they download a list), dates and licence numbers of plain digits (no personal data by themselves).
_RECOGNISERS = (
    "CreditCardRecognizer", "CryptoRecognizer", "IbanRecognizer", "IpRecognizer",
    "UsSsnRecognizer", "UsItinRecognizer", "UkNinoRecognizer", "NhsRecognizer", "EsNifRecognizer", "EsNieRecognizer",
    "ItFiscalCodeRecognizer", "PlPeselRecognizer", "FiPersonalIdentityCodeRecognizer", "SgFinRecognizer",
    "AuTfnRecognizer", "AuMedicareRecognizer", "InAadhaarRecognizer", "InPanRecognizer",
)  # fmt: skip
_PLUGINS = (
    "artifactory", "aws", "azure_storage_key", "basic_auth", "cloudant", "discord", "github_token", "gitlab_token",
    "ibm_cloud_iam", "ibm_cos_hmac", "jwt", "mailchimp", "npm", "openai", "pypi_token", "sendgrid",
    "slack", "softlayer", "square_oauth", "stripe", "telegram_token", "twilio",
)  # fmt: skip


def check_installed(tiers: frozenset[str]) -> None:
    """Raise RedactionError if the package of a tier is missing: records then wait instead of passing unredacted."""
    for tier, package in _PACKAGES.items():
        if tier in tiers and importlib.util.find_spec(package) is None:
            raise RedactionError(f"redaction.tiers names {tier}, but its package is not installed: install "
                                 "stepstream[detectors], or remove it from the policy")  # fmt: skip


def tier_rules(tiers: frozenset[str]) -> tuple[Rule, ...]:
    """Return the rules of the slower tiers. Raises RedactionError as `check_installed` does."""
    check_installed(tiers)
    return (*(_presidio() if "presidio" in tiers else ()), *(_detect_secrets() if "detect_secrets" in tiers else ()))


def _presidio() -> Iterator[Rule]:
    from presidio_analyzer import predefined_recognizers

    for name in _RECOGNISERS:
        recogniser = getattr(predefined_recognizers, name)()
        for entity in recogniser.supported_entities:
            yield Rule(f"presidio_{entity.lower()}", _RANK, _by_recogniser(recogniser, entity))


def _by_recogniser(recogniser: Any, entity: str) -> Finder:
    def find(text: str, low: int, high: int) -> Iterator[tuple[int, int]]:
        for result in recogniser.analyze(text, [entity]):
            # A lower score needs confirming words around it, and so a language model.
            if result.score >= _THRESHOLD:
                yield result.start, result.end

    return find


def _detect_secrets() -> Iterator[Rule]:
    for name in _PLUGINS:
        module = importlib.import_module(f"detect_secrets.plugins.{name}")
        for kind in vars(module).values():
            if isinstance(kind, type) and kind.__module__ == module.__name__:
                yield Rule(f"detect_secrets_{name}", _RANK, _by_plugin(kind()))


def _by_plugin(plugin: Any) -> Finder:
    def find(text: str, low: int, high: int) -> Iterator[tuple[int, int]]:
        for secret in dict.fromkeys(plugin.analyze_string(text)):
            for match in re.finditer(re.escape(secret), text) if secret else ():
                yield match.span()

    return find

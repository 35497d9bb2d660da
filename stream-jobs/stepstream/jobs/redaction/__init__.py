"""Redact texts: replace personal data and secrets by typed, stable pseudonyms. Pure.

`redactor.py` runs the rules. `views.py` and `containers.py` decode escapes and encodings first. The rules are in
`api_keys.py`, `assignments.py`, `contacts.py`, `numbers.py` and `national.py`; slower optional rules in `detectors.py`.
"""

from stepstream.jobs.redaction.checks import luhn
from stepstream.jobs.redaction.options import RedactionError, RedactionOptions
from stepstream.jobs.redaction.policy_table import parse_options
from stepstream.jobs.redaction.pseudonyms import tenant_key
from stepstream.jobs.redaction.redactor import Redactor

__all__ = ["RedactionError", "RedactionOptions", "Redactor", "luhn", "parse_options", "tenant_key"]

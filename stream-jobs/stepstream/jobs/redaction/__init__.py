"""Redaction: personal data and secrets become typed, stable pseudonyms. Pure.

`redactor.py` puts the parts together. `views.py` and `containers.py` look through encodings; the rules are in
`personal.py`, `numbers.py`, `national.py`, `tokens.py`, `assignments.py` and `names.py`;
the slower tiers in `tiers.py`.
"""

from stepstream.jobs.redaction.checks import luhn
from stepstream.jobs.redaction.options import RedactionError, RedactionOptions
from stepstream.jobs.redaction.policy_table import options_of
from stepstream.jobs.redaction.pseudonyms import tenant_key
from stepstream.jobs.redaction.redactor import Redactor

__all__ = ["RedactionError", "RedactionOptions", "Redactor", "luhn", "options_of", "tenant_key"]

"""Create a text verifier by name, and run it on one observed text."""

from pathlib import Path
from typing import Any

from stepstream.config import Settings
from stepstream.jobs.verifiers import registry
from stepstream.jobs.verifiers.base import Case, Verdict
from stepstream.jobs.verifiers.options import VerifierContext


def create(name: str, folder: Path = Path(), **options: Any) -> Any:
    return registry.make(name, options, VerifierContext(Settings(), folder))


def verdict(verifier: Any, observed: str, **expected: Any) -> Verdict:
    [one] = verifier.verify(Case("t", "task", observed, expected))
    assert isinstance(one, Verdict)
    return one


def value(verifier: Any, observed: str, **expected: Any) -> float:
    return verdict(verifier, observed, **expected).value

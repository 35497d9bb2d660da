"""Parse and check the TOML file of a tenant's governance policy. Pure.

Every entry is optional; docs/governance.md shows a file. `stepstream policy apply` rejects an invalid file and names
the wrong entry, so that no job reads one.
"""

import tomllib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from stepstream.jobs.curation.languages import LANGUAGES
from stepstream.topics.events import Consent

if TYPE_CHECKING:
    from stepstream.jobs.redaction import RedactionOptions

FLAGS = ("empty", "looping", "partial_failure", "truncated", "wrong_language")
"""Flags of `curation.quality`; `wrong_language:de` is the flag of one language."""
EVERY_TENANT = "*"
"""Tenant of the policy for all tenants without one of their own."""


class PolicyError(ValueError):
    """A policy is invalid; the message names the wrong entry and the allowed values."""


class Section(BaseModel):
    """A table of the file. Unknown entries are errors: a typo must not disable a rule."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class ConsentPolicy(Section):
    """`[consent]`: the permitted use of records."""

    default: Consent = Field("train", description="Consent without a decision about tenant, person or agent.")
    maximum: Consent = Field("train", description="Upper limit of every consent.")


class QualityPolicy(Section):
    """`[quality]`: the trajectories that their quality keeps out of training."""

    keep_out: tuple[str, ...] = Field(
        ("empty",),
        description=f"Quality flags ({', '.join(FLAGS)}) that keep a trajectory out of training; all flags are "
        "counted. A policy that learns from its own work needs failures too.",
        strict=False,
    )
    languages: tuple[str, ...] = Field(
        (), description="Languages (ISO 639-1) that responses should be in; empty: any.", strict=False
    )


class NearDuplicatePolicy(Section):
    """`[near_duplicates]`: the number of nearly equal trajectories that may be trained on."""

    cap: int = Field(0, ge=0, description="Largest number of trajectories of one cluster; 0: no limit.")
    threshold: float = Field(0.8, gt=0, le=1, description="Lowest Jaccard similarity of near-duplicates.")
    window: int = Field(10_000, ge=1, description="Newest trajectories of the tenant that are compared.")


class InspectPolicy(Section):
    """`[inspect]`: the sampled search for names."""

    share: float = Field(0.0, ge=0, le=1, description="Share of trajectories that are searched; 0: none.")
    hold: bool = Field(True, description="Keep a trajectory with a name out of training until it is released.")


class PolicyFile(Section):
    """The whole file."""

    consent: ConsentPolicy = ConsentPolicy()
    redaction: dict[str, Any] = Field({}, description="Checked by `redaction_options`.")
    quality: QualityPolicy = QualityPolicy()
    near_duplicates: NearDuplicatePolicy = NearDuplicatePolicy()
    inspect: InspectPolicy = InspectPolicy()

    @classmethod
    def parse(cls, document: str) -> Self:
        """Parse a file's text; `redaction_options` checks its `[redaction]` table.

        Raises:
            PolicyError: the text is not TOML, or an entry is unknown or of the wrong type.
        """
        try:
            return cls.model_validate(tomllib.loads(document))
        except tomllib.TOMLDecodeError as error:
            raise PolicyError(f"it is not TOML: {error}") from None
        except ValidationError as error:
            raise PolicyError(_explain(error)) from None

    def redaction_options(self) -> "RedactionOptions":
        """Return the options of the `[redaction]` table.

        Raises:
            PolicyError: an entry is wrong, or needs a package that is not installed.
        """
        # Imported here: loading the rules is slow, and few callers redact.
        from stepstream.jobs.redaction import RedactionError, parse_options

        try:
            return parse_options(self.redaction)
        except RedactionError as error:
            raise PolicyError(str(error)) from error


def check(document: str) -> PolicyFile:
    """Parse a file's text and check every entry.

    Raises:
        PolicyError: an entry is wrong, or needs a package that is not installed.
    """
    policy = PolicyFile.parse(document)
    policy.redaction_options()
    languages = sorted(LANGUAGES)
    _check_known("quality.languages", policy.quality.languages, languages)
    flags = [*FLAGS, *(f"wrong_language:{language}" for language in languages)]
    _check_known("quality.keep_out", policy.quality.keep_out, flags, FLAGS)
    return policy


def next_version(policies: Mapping[str, Any], tenant: str) -> int:
    """Return the number of a tenant's next policy: above its own and above that for all tenants.

    A policy for all tenants gets a number above all others. So the numbers order two results for one record.
    """
    earlier = policies.values() if tenant == EVERY_TENANT else [policies.get(tenant), policies.get(EVERY_TENANT)]
    return 1 + max((record["version"] for record in earlier if record is not None), default=0)


def _check_known(entry: str, names: Sequence[str], known: Sequence[str], listed: Sequence[str] = ()) -> None:
    for name in names:
        if name not in known:
            raise PolicyError(f"{entry} does not know {name}; it knows {', '.join(listed or known)}")


def _explain(error: ValidationError) -> str:
    sentences = []
    for fault in error.errors(include_url=False, include_input=False):
        *tables, entry = map(str, fault["loc"])
        path = ".".join((*tables, entry))
        if fault["type"] == "extra_forbidden":
            sentences.append(f"{path} is unknown: there are {', '.join(_entries(tables))}")
        else:
            sentences.append(f"{path}: {fault['msg'][0].lower()}{fault['msg'][1:]}")
    return "; ".join(sentences)


def _entries(tables: list[str]) -> list[str]:
    """Return the allowed entries of a table of the file."""
    section: Any = PolicyFile
    for name in tables:
        section = section.model_fields[name].annotation
    return list(section.model_fields)

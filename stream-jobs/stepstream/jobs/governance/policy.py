"""A tenant's governance policy: what its file says, checked. Pure.

The file is TOML; every entry may be left out. docs/governance.md shows one. A policy that cannot be applied is refused
when it is put up, with a sentence that says which entry is wrong, so that no job meets it.
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
"""What `curation.quality` flags; `wrong_language:de` is that of one language."""
EVERY_TENANT = "*"
"""Tenant of the policy for all that have none of their own."""


class PolicyError(ValueError):
    """A policy that cannot be applied; the message says which entry is wrong and what it may be."""


class Part(BaseModel):
    """A table of the file; unknown entries are refused, so that a typing error cannot pass for a rule."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class ConsentPolicy(Part):
    """`[consent]`: what may be done with records."""

    default: Consent = Field("train", description="Consent where nothing was said about tenant, person or agent.")
    maximum: Consent = Field("train", description="The most that is allowed, whatever was said.")


class QualityPolicy(Part):
    """`[quality]`: which trajectories are not trained on for what they are."""

    keep_out: tuple[str, ...] = Field(
        ("empty",),
        description=f"Flags of quality ({', '.join(FLAGS)}) that keep a trajectory out of training; all are counted "
        "either way. Learning from one's own work needs failures too.",
        strict=False,
    )
    languages: tuple[str, ...] = Field(
        (), description="Languages (ISO 639-1) that responses should be in; empty: any.", strict=False
    )


class NearDuplicatePolicy(Part):
    """`[near_duplicates]`: how many trajectories that are nearly the same may be trained on."""

    cap: int = Field(0, ge=0, description="Most trajectories of one cluster; 0: no limit.")
    threshold: float = Field(0.8, gt=0, le=1, description="Jaccard similarity from which on two are nearly the same.")
    window: int = Field(10_000, ge=1, description="Newest trajectories of the tenant among which they are looked for.")


class InspectPolicy(Part):
    """`[inspect]`: the sampled search for names."""

    share: float = Field(0.0, ge=0, le=1, description="Share of trajectories that are searched; 0: none.")
    hold: bool = Field(True, description="Whether a trajectory with a find is kept out of training until released.")


class PolicyFile(Part):
    """The whole file."""

    consent: ConsentPolicy = ConsentPolicy()
    redaction: dict[str, Any] = Field({}, description="Checked by `redaction_options`.")
    quality: QualityPolicy = QualityPolicy()
    near_duplicates: NearDuplicatePolicy = NearDuplicatePolicy()
    inspect: InspectPolicy = InspectPolicy()

    @classmethod
    def parse(cls, document: str) -> Self:
        """The policy of a file's text; its redaction is not looked at.

        Raises:
            PolicyError: it is not TOML, or has an entry that is unknown or of the wrong kind.
        """
        try:
            return cls.model_validate(tomllib.loads(document))
        except tomllib.TOMLDecodeError as error:
            raise PolicyError(f"it is not TOML: {error}") from None
        except ValidationError as error:
            raise PolicyError(_explain(error)) from None

    def redaction_options(self) -> "RedactionOptions":
        """What its redaction looks for.

        Raises:
            PolicyError: an entry is wrong, or needs a package that is not installed here.
        """
        # Its rules are costly to load, and only who redacts needs them.
        from stepstream.jobs.redaction import RedactionError, options_of

        try:
            return options_of(self.redaction)
        except RedactionError as error:
            raise PolicyError(str(error)) from error


def check(document: str) -> PolicyFile:
    """The policy of a file's text, with everything in it looked at; raises `PolicyError`."""
    policy = PolicyFile.parse(document)
    policy.redaction_options()
    languages = sorted(LANGUAGES)
    _check_known("quality.languages", policy.quality.languages, languages)
    flags = [*FLAGS, *(f"wrong_language:{language}" for language in languages)]
    _check_known("quality.keep_out", policy.quality.keep_out, flags, FLAGS)
    return policy


def next_version(policies: Mapping[str, Any], tenant: str) -> int:
    """Number of a tenant's next policy: above its own, and above the one that may have ruled it so far.

    A policy for all tenants gets a number above every other, so that one record governed twice tells which was later.
    """
    ruling = policies.values() if tenant == EVERY_TENANT else [policies.get(tenant), policies.get(EVERY_TENANT)]
    return 1 + max((record["version"] for record in ruling if record is not None), default=0)


def _check_known(entry: str, given: Sequence[str], known: Sequence[str], shown: Sequence[str] = ()) -> None:
    for name in given:
        if name not in known:
            raise PolicyError(f"{entry} does not know {name}; it knows {', '.join(shown or known)}")


def _explain(error: ValidationError) -> str:
    told = []
    for fault in error.errors(include_url=False, include_input=False):
        *tables, entry = map(str, fault["loc"])
        place = ".".join((*tables, entry))
        if fault["type"] == "extra_forbidden":
            told.append(f"{place} is unknown: there are {', '.join(_entries(tables))}")
        else:
            told.append(f"{place}: {fault['msg'][0].lower()}{fault['msg'][1:]}")
    return "; ".join(told)


def _entries(tables: list[str]) -> list[str]:
    """Names that the file may have at a place."""
    part: Any = PolicyFile
    for name in tables:
        part = part.model_fields[name].annotation
    return list(part.model_fields)

"""The jobs that have steps and trajectories judged."""

from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr

from stepstream.config.sections.base import Section


class Judge(Section):
    """The job that has each step scored by a model, from the user's message that followed it."""

    url: str = Field(
        "", description="Base address of an OpenAI-compatible API, as https://host/v1; empty: nothing is judged."
    )
    model: str = Field("", description="Model that judges.")
    api_key: SecretStr = Field(SecretStr(""), description="Key for it; never printed.")
    agents: list[str] = Field([], description="Agents whose steps are judged; empty: all. Comma-separated.")
    tenants: list[str] = Field([], description="Tenants whose steps are judged; empty: all. Comma-separated.")
    per_minute: float = Field(60.0, gt=0, description="Most questions asked in a minute.")
    timeout_s: float = Field(30.0, gt=0, description="Seconds allowed for one answer.")
    patience_s: float = Field(
        120.0, ge=0, description="Seconds for which a judge that fails is asked again before a step is skipped."
    )


class Verify(Section):
    """The job that has verifiers judge closed trajectories; models that judge are asked as `judge` says."""

    file: Path | None = Field(None, description="Verification file (TOML): which verifier looks at what.")
    sandbox: Literal["strict", "network", "none"] = Field(
        "strict",
        description="What must be sure before an agent's code is run: no network and no files but its own (strict), no "
        "network (network), or nothing (none). Where it cannot be had, nothing is run.",
    )
    parallel: int = Field(4, ge=1, description="Cases that are judged at once.")
    patience_s: float = Field(
        120.0,
        ge=0,
        description="Seconds for which a verifier that cannot work is tried again before a case is skipped.",
    )
    keep_days: int = Field(7, ge=1, description="Days for which a closed trajectory is kept, should a step come late.")
    inference_url: str = Field(
        "http://127.0.0.1:8000",
        description="Base address of the inference worker that serves the process reward model.",
    )

"""Settings of the optimisers of harnesses."""

from pydantic import SecretStr

from stepstream.config.base import HttpAddress, OptionalHttpAddress, Section, setting


class OptimiseSettings(Section):
    """Optimisers, which propose harness versions from recorded trajectories."""

    gateway_url: HttpAddress = setting(
        "http://127.0.0.1:8080", "Base address of the gateway, which answers recorded prompts for candidates."
    )
    gateway_key: SecretStr = setting(SecretStr(""), "API key for the gateway; never printed.")
    calls: int = setting(400, "Limit of model calls of one search.", unit="calls", ge=1)
    tokens: int = setting(2_000_000, "Limit of tokens of one search.", unit="tokens", ge=1)
    trajectories: int = setting(
        2000, "Newest trajectories of the agent with an outcome that a search reads.", unit="trajectories", ge=1
    )
    parallel: int = setting(4, "Calls at the same time.", unit="calls", ge=1)
    timeout_s: float = setting(60.0, "Timeout of one call, and time to retry a failing one.", unit="s", gt=0)
    reflection_url: OptionalHttpAddress = setting(
        "",
        "Base address of an OpenAI-compatible API, as `https://host/v1`, whose model rewrites instructions; empty: "
        "there is none, and examples are the only search.",
    )
    reflection_model: str = setting("", "Model that rewrites instructions.")
    reflection_key: SecretStr = setting(SecretStr(""), "API key for that model; never printed.")

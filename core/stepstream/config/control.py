"""Settings of the controller, the process of the control plane."""

from pathlib import Path

from pydantic import SecretStr

from stepstream.config.base import OptionalHttpAddress, Section, setting


class ControlSettings(Section):
    """The controller, which decides for each agent and model that a control policy covers."""

    interval_s: float = setting(5.0, "Interval of decisions.", unit="s", gt=0)
    window_s: float = setting(86_400.0, "Age of the oldest trajectories that a decision is based on.", unit="s", ge=60)
    tool_window_s: float = setting(
        900.0,
        "Newest calls of a tool, which are compared with those of 7 days before. At most the `watch_s` of the lever "
        "`tools`: else calls from before a decision raise the alert again.",
        unit="s",
        ge=10,
    )
    hold_every_s: float = setting(3600.0, "Interval of decisions to hold for an unchanged reason.", unit="s", gt=0)
    propose_timeout_s: float = setting(
        1800.0,
        "Time limit of a search for a harness version to propose, from its begin, also across restarts. The section "
        "`optimise` has the addresses and the other limits of a search.",
        unit="s",
        gt=0,
    )
    record: Path | None = setting(
        None,
        "Folder to record the inputs of decisions in, a file a day, for `stepstream simulate --log`; empty: none. They "
        "have no text of trajectories.",
    )
    record_every_s: float = setting(
        300.0,
        "Interval of recorded inputs for each agent and model; those of a new decision always are.",
        unit="s",
        gt=0,
    )
    webhook_url: OptionalHttpAddress = setting(
        "", "Address that gets a signed POST for each decision that waits for people, and for its end; empty: none."
    )
    webhook_secret: SecretStr = setting(
        SecretStr(""),
        "Key of the signature, at least 24 bytes in base64, as `openssl rand -base64 32` prints; never printed.",
    )
    webhook_timeout_s: float = setting(10.0, "Timeout of one POST.", unit="s", gt=0)

"""Settings of the controller, the process of the control plane."""

import base64
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, SecretStr

from stepstream.config.base import OptionalHttpAddress, Section, setting

_ROLES = ("viewer", "operator", "admin")


def _check_trusted_key(text: str) -> str:
    *bound, key = text.rsplit(":", 2)
    try:
        length = len(base64.b64decode(key, validate=True))
    except ValueError:
        length = 0
    is_bound = len(bound) == 2 and bound[0] != "" and bound[1] in _ROLES
    if length != 32 or (bound and not is_bound):
        raise ValueError(
            f"'{text}' is neither KEY nor PERSON:ROLE:KEY with a public key of `stepstream models keygen` and one of "
            f"the roles {', '.join(_ROLES)}"
        )
    return text


TrustedKey = Annotated[str, AfterValidator(_check_trusted_key)]
"""Ed25519 public key in base64, or `PERSON:ROLE:KEY`."""


class ControlSettings(Section):
    """The controller, which decides for each agent and model that a control policy covers."""

    interval_s: float = setting(5.0, "Interval of decisions.", unit="s", gt=0)
    canary_interval_s: float = setting(
        1.0,
        "Interval at which the controller looks whether the tables have grown, while a version is tried or its "
        "promotion is watched; if so, it decides at once.",
        unit="s",
        gt=0,
    )
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
    shadow_timeout_s: float = setting(
        600.0,
        "Time limit of a shadow replay of new weights, from the act that lets workers load them, also across restarts. "
        "A control policy asks for replays with `canary.shadow`.",
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
    signing_key: str = setting(
        "",
        "File of the private key with which this process signs answers of people to decisions; `stepstream models "
        "keygen` creates it. Empty: unsigned.",
    )
    trusted_keys: list[TrustedKey] = setting(
        [],
        "Public keys, separated by commas, whose signatures make an answer to a decision count. `KEY` signs for "
        "everyone: that of the console. `PERSON:ROLE:KEY` signs for one person, with this role or a lower one. Empty: "
        "unsigned answers count.",
    )

"""Define the base class of settings sections and the types and declaration that sections share."""

import ipaddress
import re
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

_ADDRESS = re.compile(r"https?://[^\s/]+(/\S*)?")


class Section(BaseModel):
    """A group of settings. Unknown names raise an error, so that a misspelled setting cannot pass as its default."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def setting(default: Any, description: str, *, unit: str = "", **constraints: Any) -> Any:
    """Declare one setting.

    Args:
        default: its default value; `...`: required.
        description: its meaning in one or two sentences, for `stepstream config` and docs/settings.md.
        unit: unit of a number; empty: none.
        constraints: bounds of pydantic's `Field`: `gt`, `ge`, `lt`, `le`, `min_length`.
    """
    return Field(default, description=description, json_schema_extra={"unit": unit}, **constraints)


def is_loopback(host: str) -> bool:
    """Return True if only this machine reaches a service that listens on `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def reached_by_tls(address: str) -> bool:
    """Return True if a request to this address is encrypted, or stays on this machine."""
    return address.startswith("https://") or is_loopback(urlsplit(address).hostname or "")


def _check_addresses(text: str) -> str:
    for address in text.split(","):
        if not _ADDRESS.fullmatch(address.strip()):
            raise ValueError("not an HTTP address, as http://127.0.0.1:8123")
    return text


Port = Annotated[int, Field(ge=1, le=65535)]
"""A TCP port that other processes must know."""


def _check_optional_address(text: str) -> str:
    return _check_addresses(text).rstrip("/") if text else text


OptionalHttpAddress = Annotated[str, AfterValidator(_check_optional_address)]
"""A base address with `http://` or `https://`, without a slash at its end; or empty."""

HttpAddress = Annotated[str, AfterValidator(_check_addresses)]
"""A base address with `http://` or `https://`; commas separate several addresses of one service."""

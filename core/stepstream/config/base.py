"""What every section of the settings is made of."""

import re
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

_ADDRESS = re.compile(r"https?://[^\s/]+(/\S*)?")


class Section(BaseModel):
    """A group of settings; unknown names are refused so that a typing error cannot pass as a default."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def _addresses(text: str) -> str:
    for address in text.split(","):
        if not _ADDRESS.fullmatch(address.strip()):
            raise ValueError("not an HTTP address, as http://127.0.0.1:8123")
    return text


Port = Annotated[int, Field(ge=1, le=65535)]
"""A TCP port that is told to others."""

HttpAddress = Annotated[str, AfterValidator(_addresses)]
"""A base address with `http://` or `https://`; several, for the same thing, have commas between."""

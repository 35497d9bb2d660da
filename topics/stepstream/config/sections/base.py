"""What every section of the settings is made of."""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A group of settings; unknown names are refused so that a typing error cannot pass as a default."""

    model_config = ConfigDict(extra="forbid", frozen=True)

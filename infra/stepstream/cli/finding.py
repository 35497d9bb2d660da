"""What `stepstream doctor` found."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Finding:
    """One fact. `fault`: something that was asked for does not work; `warning`: it may be missed later."""

    name: str
    state: Literal["ok", "warning", "fault"]
    detail: str
    fix: str = ""

"""Trajectories in the formats that others keep them in: pure converters in both directions, and files of them.

Each format is one module with `write(episode)` and `read(document, origin)`; `formats.FORMATS` lists them. See
docs/datasets.md.
"""

from stepstream.datasets.episode import Episode, Origin, Unreadable
from stepstream.datasets.formats import FORMATS, Format

__all__ = ["FORMATS", "Episode", "Format", "Origin", "Unreadable"]

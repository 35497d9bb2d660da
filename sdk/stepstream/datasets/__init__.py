"""Convert trajectories to and from the file formats of other projects.

Each format is a pure module with `write(episode)` and `read(document, origin)`; `formats.FORMATS` lists them. See
docs/datasets.md.
"""

from stepstream.datasets.episode import Episode, InvalidDocument, Origin
from stepstream.datasets.formats import FORMATS, Format

__all__ = ["FORMATS", "Episode", "Format", "InvalidDocument", "Origin"]

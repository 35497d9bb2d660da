"""Memory that the C library gets from the kernel and keeps."""

import ctypes
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_NEVER = 2**30


def keep_memory() -> None:
    """Lets this process keep memory that it has freed, up to the largest it ever used.

    glibc returns large blocks to the kernel at once, which fills them with zeros page by page when they come again: an
    update of the tiny model takes a seventh longer by it. Elsewhere this does nothing.
    """
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, _NEVER)
        mallopt(_TRIM_THRESHOLD, _NEVER)

"""Tell the exceptions of a fold from faults of its surroundings, and describe them without content of records."""

import traceback
from pathlib import Path

from confluent_kafka import KafkaException

from stepstream.config import SettingsError
from stepstream.core.process import Fatal
from stepstream.jobs.runtime.retry import Cancelled
from stepstream.topics.codec import RegistryUnavailable

_NOT_THE_FOLD = (Cancelled, Fatal, SettingsError, RegistryUnavailable, KafkaException, OSError, MemoryError)


def is_of_fold(error: Exception) -> bool:
    """Return False for a fault of a service, of the settings or of the disk."""
    # The binding of RocksDB raises bare exceptions.
    return not isinstance(error, _NOT_THE_FOLD) and type(error) is not Exception


def describe(error: Exception) -> str:
    """Describe an exception without its text, which may hold content of a record."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" in {frames[-1].name} ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return f"the fold raises {type(error).__name__}{place}"


def trace(error: Exception) -> str:
    """Return the trace of an exception without its text."""
    return "".join(traceback.format_tb(error.__traceback__))

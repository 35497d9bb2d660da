"""Tell the exceptions of a fold from faults of its surroundings, and describe them without content of records."""

import logging
import traceback
from pathlib import Path

from confluent_kafka import KafkaException

from stepstream.config import SettingsError
from stepstream.core.process import Fatal
from stepstream.jobs.runtime.fold import Fold, FoldJob
from stepstream.jobs.runtime.retry import Cancelled
from stepstream.jobs.runtime.state import PartitionState
from stepstream.topics.codec import RegistryUnavailable

log = logging.getLogger(__name__)

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


def build_fold(job: FoldJob, number: int, state: PartitionState) -> Fold:
    """Build the fold of a partition.

    Raises:
        Fatal: the fold cannot read the state. No record is at fault that could be set aside.
    """
    try:
        return job.fold(state)
    except Exception as error:
        if not is_of_fold(error):
            raise
        log.error("%s", trace(error))
        raise Fatal(
            f"{job.name} cannot read the state of partition {number} in {state.folder}, {describe(error)}: start the "
            "release that wrote it, or move this folder away, and the partition is built from a snapshot and the log"
        ) from error

"""What the stack does itself between starting processes; each is safe to do again."""

import os
import subprocess
import sys

from stepstream.config import Settings, environment_of
from stepstream.embedded.errors import StackError


def apply_topics(settings: Settings) -> None:
    """Creates or alters the topics and registers their schemas, from the catalogue."""
    from stepstream.topics import admin

    admin.apply(settings)


def migrate_store(settings: Settings) -> None:
    """Brings the analytics store's tables and views to what the code expects."""
    from stepstream.jobs.clickhouse import migrate

    migrate.migrate(settings)


def publish_base(settings: Settings) -> None:
    """Publishes the base model, see `base_model`; in a process of its own, since it needs torch and this one does not.

    Raises:
        StackError: it failed; the message is its last line.
    """
    if not settings.stack.base_model:
        return
    command = [sys.executable, "-m", "stepstream.embedded.child", "stepstream.embedded.base_model"]
    done = subprocess.run(
        command, env={**os.environ, **environment_of(settings)}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise StackError((done.stderr.strip().splitlines() or ["it failed without a word"])[-1])

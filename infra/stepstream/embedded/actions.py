"""Run the stack's own start-up steps: apply topics, migrate tables, publish the base model. Each is idempotent."""

import os
import subprocess
import sys

from stepstream.config import Settings, environment_of
from stepstream.embedded.errors import StackError


def apply_topics(settings: Settings) -> None:
    """Create or alter the topics of the catalogue and register their schemas."""
    from stepstream.topics import admin

    admin.apply(settings)


def migrate_store(settings: Settings) -> None:
    """Apply the missing migrations to the store's tables and views."""
    from stepstream.jobs.clickhouse import migrate

    migrate.migrate(settings)


def publish_base(settings: Settings) -> None:
    """Publish the base model (see `base_model`) in a child process, so that this process need not import torch.

    Raises:
        StackError: the child failed; the message is its last line.
    """
    if not settings.stack.base_model:
        return
    command = [sys.executable, "-m", "stepstream.embedded.child", "stepstream.embedded.base_model"]
    done = subprocess.run(
        command, env={**os.environ, **environment_of(settings)}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        output = done.stderr.strip().splitlines()
        raise StackError(output[-1] if output else f"the process ended with status {done.returncode} and no output")

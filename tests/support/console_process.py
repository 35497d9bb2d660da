"""Run the console as a process, and fill the tables that it shows."""

import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sample_records import (
    SECOND_US,
    alarm,
    checkpoint,
    component_stats,
    dead_letter,
    feedback,
    learner_update,
    step,
    trajectory,
    worker_status,
)
from waiting import TIMEOUT_S, wait_until

from stepstream.config import Settings, environment_of
from stepstream.embedded.ports import free_block
from stepstream.jobs.clickhouse import connection
from stepstream.jobs.clickhouse.rows import TABLES, rows


@contextmanager
def console(settings: Settings, folder: Path, port: int | None = None) -> Iterator[str]:
    """Run a console on a port, by default a free one; yield its address, then stop it and check its exit status."""
    port = port or free_block(1)
    own = settings.model_copy(update={"console": settings.console.model_copy(update={"port": port})})
    url = f"http://127.0.0.1:{port}"
    with (folder / "console.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "stepstream.services.console"],
            env={**os.environ, **environment_of(own)},
            stderr=log,
        )
    try:

        def ready() -> bool:
            assert process.poll() is None, (folder / "console.log").read_text()
            return _answers(f"{url}/health")

        wait_until(ready, "the console answers")
        yield url
        process.send_signal(signal.SIGTERM)
        assert process.wait(TIMEOUT_S) == 0
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as reply:
            return bool(reply.status == 200)
    except OSError:
        return False


def insert_rows(settings: Settings) -> None:
    """Insert two versions of a model with outcomes, recent steps, a worker, feedback and a dead letter."""
    now_us = time.time_ns() // 1000
    records: list[tuple[str, Any]] = [
        ("checkpoints", checkpoint(0, now_us - 60 * SECOND_US)),
        ("checkpoints", checkpoint(1, now_us - 20 * SECOND_US, parent_version=0)),
        ("worker-status", worker_status(at_us=now_us, version=1, newest_version=1)),
        ("governed-feedback", feedback()),
        ("dead-letters", dead_letter()),
        ("alarms", alarm(occurred_at_us=now_us)),
        ("learner-updates", learner_update(occurred_at_us=now_us, seconds={"train": 6.0, "wait": 1.0, "read": 1.0})),
        *(("component-stats", component_stats(version=version)) for version in (0, 1)),
    ]
    for n in range(20):
        version, good = divmod(n, 10)
        ended = now_us - (40 - 2 * n) * SECOND_US
        records += [
            ("governed-steps", step(f"t{n}", at_us=now_us - (3 + n % 10) * SECOND_US)),
            ("labeled-trajectories", trajectory(f"t{n}", version=version, split="eval" if n % 2 else "train",
                success=good < 2 + 6 * version, started_at_us=ended - SECOND_US, ended_at_us=ended)),
        ]  # fmt: skip
    batches: dict[str, list[tuple[object, ...]]] = {}
    for topic, record in records:
        for table, row in rows(topic, record):
            batches.setdefault(table, []).append(row)
    with connection.connect(settings, database=settings.clickhouse.database) as client:
        for table, batch in batches.items():
            client.insert(table, batch, column_names=TABLES[table].columns)

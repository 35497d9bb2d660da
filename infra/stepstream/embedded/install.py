"""The one-time part of the embedded stack: fetch Kafka's jars, then make the AOT cache with a first broker run."""

import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from stepstream.config import Settings
from stepstream.embedded import broker, jars, java
from stepstream.embedded.addresses import isolated
from stepstream.embedded.errors import StackError
from stepstream.embedded.ready import SILENT, KafkaReady

# Generous: a small machine that is busy with something else is slow, not broken.
_DEADLINE_S = 180.0
_SCRATCH = ".aot-"

Say = Callable[[str], None]


def installed(settings: Settings) -> bool:
    """Whether jars and AOT cache are there."""
    folder = java.home(settings)
    return jars.installed(folder) and java.aot_cache(folder).is_file()


def install(settings: Settings, say: Say = lambda line: None) -> None:
    """Fetches the jars (43 MB) and makes the AOT cache (70 MB, about 10 s) if they are missing.

    Args:
        settings: `broker.home` says where; `broker.heap_mb` is what the broker will run with.
        say: called with a line for people at each bit of progress.

    Raises:
        StackError: a jar cannot be fetched or is not what the lock says, or the first run fails.
    """
    folder = java.home(settings)
    if not jars.installed(folder):
        jars.install(folder, lambda done, of: say(f"fetching Kafka: {done} of {of} jars"))
    if not java.aot_cache(folder).is_file():
        with jars.locked(folder):
            for left in folder.glob(f"{_SCRATCH}*"):  # by a run that was killed
                shutil.rmtree(left, ignore_errors=True)
            if not java.aot_cache(folder).is_file():
                say("preparing Kafka for fast starts (once, about 10 s)")
                _make_aot_cache(settings, folder)


def _make_aot_cache(settings: Settings, folder: Path) -> None:
    """Runs a broker over empty data, uses it a little, and stops it: it then writes what it had loaded."""
    with tempfile.TemporaryDirectory(dir=folder, prefix=_SCRATCH) as scratch:
        trial = isolated(settings, Path(scratch) / "data")
        trial = trial.model_copy(update={"broker": trial.broker.model_copy(update={"home": folder})})
        output = Path(scratch) / "cache.aot"
        broker.prepare(trial)
        configuration = str(broker.configuration_file(trial))
        command = java.command(trial, java.MAIN, configuration, extra=(f"-XX:AOTCacheOutput={output}",))
        log = Path(scratch) / "log"
        with log.open("wb") as sink:
            mortal = [sys.executable, "-m", "stepstream.embedded.child", "--", *command]
            process = subprocess.Popen(mortal, stdout=sink, stderr=sink)
        try:
            _wait(KafkaReady(trial.kafka), process, log)
            _use(trial.kafka.bootstrap)
            process.send_signal(signal.SIGTERM)
            process.wait(_DEADLINE_S)
        except subprocess.TimeoutExpired:
            raise StackError(f"Kafka's first run does not end: {_tail(log)}") from None
        finally:
            process.kill()
            process.wait()
        if not output.is_file():
            raise StackError(f"Kafka's first run wrote no AOT cache: {_tail(log)}")
        output.replace(java.aot_cache(folder))


def _wait(ready: KafkaReady, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _DEADLINE_S
    while not ready():
        if process.poll() is not None or time.monotonic() > deadline:
            raise StackError(f"Kafka did not start: {_tail(log)}")
        time.sleep(0.05)


def _use(bootstrap: str) -> None:
    """Makes a topic, writes and reads it in a group: what every real run will load."""
    from confluent_kafka import Consumer, Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": bootstrap}, logger=SILENT)
    for future in admin.create_topics([NewTopic("trial", 2, 1)]).values():
        future.result(_DEADLINE_S)
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True}, logger=SILENT)
    for i in range(100):
        producer.produce("trial", value=b"x" * 1_000, key=str(i))
    producer.flush(_DEADLINE_S)
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "trial", "auto.offset.reset": "earliest"},
        logger=SILENT,
    )
    consumer.subscribe(["trial"])
    deadline, seen = time.monotonic() + _DEADLINE_S, 0
    while seen < 100 and time.monotonic() < deadline:
        seen += len(consumer.consume(100, 0.5))
    consumer.commit(asynchronous=False)
    consumer.close()


def _tail(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"

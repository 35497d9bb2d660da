"""Install Kafka once: fetch its jars, then create the AOT cache by running a broker."""

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

# Long enough for a small machine that is busy.
_DEADLINE_S = 180.0
_SCRATCH = ".aot-"

OnLine = Callable[[str], None]


def installed(settings: Settings) -> bool:
    """Return True if the jars and the AOT cache exist."""
    folder = java.home(settings)
    return jars.installed(folder) and java.aot_cache(folder).is_file()


def install(settings: Settings, on_line: OnLine = lambda line: None) -> None:
    """Fetch the jars (43 MB) and create the AOT cache (70 MB, about 10 s) if they are missing.

    Args:
        settings: `broker.home` is the folder; `broker.heap_mb` is the heap of the first run.
        on_line: called with one line of progress, for people.

    Raises:
        StackError: a jar cannot be fetched or differs from the lock, or the first run fails.
    """
    folder = java.home(settings)
    if not jars.installed(folder):
        jars.install(folder, lambda done, total: on_line(f"fetching Kafka: {done} of {total} jars"))
    if not java.aot_cache(folder).is_file():
        with jars.locked(folder):
            for leftover in folder.glob(f"{_SCRATCH}*"):  # of a killed installation
                shutil.rmtree(leftover, ignore_errors=True)
            if not java.aot_cache(folder).is_file():
                on_line("preparing Kafka for fast starts (once, about 10 s)")
                _make_aot_cache(settings, folder)


def _make_aot_cache(settings: Settings, folder: Path) -> None:
    """Run a broker over empty data, use it briefly and stop it; Java then writes the classes that it loaded."""
    with tempfile.TemporaryDirectory(dir=folder, prefix=_SCRATCH) as scratch:
        trial = isolated(settings, Path(scratch) / "data")
        trial = trial.model_copy(update={"broker": trial.broker.model_copy(update={"home": folder})})
        output = Path(scratch) / "cache.aot"
        broker.prepare(trial)
        configuration = str(broker.configuration_file(trial))
        command = java.command(trial, java.MAIN, configuration, extra=(f"-XX:AOTCacheOutput={output}",))
        log = Path(scratch) / "log"
        with log.open("wb") as sink:
            child = [sys.executable, "-m", "stepstream.embedded.child", "--", *command]
            process = subprocess.Popen(child, stdout=sink, stderr=sink)
        try:
            _wait(KafkaReady(trial.kafka), process, log)
            _exercise_broker(trial.kafka.bootstrap)
            process.send_signal(signal.SIGTERM)
            process.wait(_DEADLINE_S)
        except subprocess.TimeoutExpired:
            raise StackError(f"Kafka's first run did not stop within {_DEADLINE_S:g} s: {_last_line(log)}") from None
        finally:
            process.kill()
            process.wait()
        if not output.is_file():
            raise StackError(f"Kafka's first run wrote no AOT cache: {_last_line(log)}")
        output.replace(java.aot_cache(folder))


def _wait(ready: KafkaReady, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _DEADLINE_S
    while not ready():
        if process.poll() is not None or time.monotonic() > deadline:
            raise StackError(f"Kafka did not start within {_DEADLINE_S:g} s: {_last_line(log)}")
        time.sleep(0.05)


def _exercise_broker(bootstrap: str) -> None:
    """Create a topic, write to it and read it in a group, so that the cache holds the classes of real use."""
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


def _last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1] if lines else "it printed nothing"

"""Publish versions for inference workers, read their states, and call them."""

import hashlib
import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from labelled_records import tiny_model
from log_reading import read_to_end
from waiting import TIMEOUT_S

from stepstream.config import Settings
from stepstream.topics.codec import Codec
from stepstream.topics.events import Checkpoint, WorkerStatus, new_checkpoint, new_checkpoint_file
from stepstream.topics.ids import new_event_id, now_us
from stepstream.topics.producer import EventProducer
from stepstream.versions.layout import weights_sha256

ASK: dict[str, Any] = {
    "messages": [{"role": "user", "content": "q:a+c"}],
    "temperature": 0,
    "max_tokens": 12,
    "logprobs": True,
    "return_token_ids": True,
}


class VersionPublisher:
    """Publishes checkpoints and reads the worker's statuses."""

    def __init__(self, settings: Settings, folder: Path, model: str) -> None:
        self._settings, self._folder, self._model = settings, folder, model
        self._codec = Codec(settings)

    def close(self) -> None:
        self._codec.close()

    def make(self, version: int, seed: int) -> Checkpoint:
        """Write a checkpoint and return its event, which is not published yet."""
        return self.describe(version, tiny_model(self._folder / f"v{version}", seed))

    def describe(self, version: int, folder: Path, base_version: int | None = None) -> Checkpoint:
        """Return the event of the files in a folder; with `base_version` they are adapters of that version."""
        files = [
            new_checkpoint_file(
                path=file.relative_to(folder).as_posix(),
                sha256=hashlib.sha256(file.read_bytes()).hexdigest(),
                size_bytes=file.stat().st_size,
            )
            for file in sorted(folder.rglob("*"))
            if file.is_file()
        ]
        return new_checkpoint(
            event_id=new_event_id(),
            occurred_at_us=now_us(),
            model=self._model,
            version=version,
            uri=folder.as_uri(),
            weights_sha256=weights_sha256(files),
            files=files,
            code_version="test",
            format="full" if base_version is None else "lora",
            base_version=base_version,
        )

    def publish(self, checkpoint: Checkpoint) -> None:
        producer = EventProducer(self._settings.kafka, self._codec, "test")
        producer.send("checkpoints", f"{self._model}@{checkpoint['version']}", checkpoint)
        producer.flush(TIMEOUT_S)

    def statuses(self, worker_id: str) -> list[WorkerStatus]:
        """Return all statuses of a worker so far."""
        events = read_to_end(self._settings, self._codec, "worker-status")
        return [event.record for event in events if event.key == worker_id]


class WorkerClient:
    """HTTP client of the worker."""

    def __init__(self, settings: Settings) -> None:
        self._base = f"http://127.0.0.1:{settings.inference.port}"
        self._model = settings.inference.model

    def get(self, path: str) -> tuple[int, bytes]:
        return self._open(urllib.request.Request(f"{self._base}{path}"))

    def chat(self, track: str | None = None, **fields: Any) -> tuple[int, dict[str, Any]]:
        body = json.dumps(ASK | {"model": self._model} | fields).encode()
        headers = {} if track is None else {"x-stepstream-track": track}
        status, answer = self._open(urllib.request.Request(f"{self._base}/v1/chat/completions", body, headers))
        return status, json.loads(answer)

    def version(self) -> int | None:
        """Return the served version; None: it serves none or does not listen yet."""
        try:
            version: int | None = json.loads(self.get("/health")[1])["version"]
        except OSError:
            return None
        return version

    def tracks(self) -> dict[str, int]:
        """Return the served version of each track; empty: it serves none or does not listen yet."""
        try:
            tracks: dict[str, int] = json.loads(self.get("/health")[1])["tracks"]
        except OSError:
            return {}
        return tracks

    @staticmethod
    def _open(request: urllib.request.Request) -> tuple[int, bytes]:
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()

"""Check the fold of the Node example against the Python one: deleted keys of any form, and which workers are live."""

import json
import subprocess
from pathlib import Path
from typing import Any

from required_tools import require_tool

from stepstream.topics.events import Checkpoint, WorkerStatus, new_checkpoint, new_worker_status
from stepstream.versions.updates import ModelUpdates

FOLD = Path(__file__).parents[3] / "examples/node/model_fold.js"
PROGRAM = """
import { readFileSync } from "node:fs";
import { Models } from %s;
const models = new Models();
const updates = JSON.parse(readFileSync(0)).flatMap((record) => models.apply(...record));
console.log(JSON.stringify([...updates, ...models.state(%d)]));
"""
KEYS = [
    "m",
    "",
    "@1",
    "m@",
    "m@x",
    "m@1.0",
    "m@1e0",
    "m@ 1",
    "m@-1",
    "m@0x1",
    "m@9999999999",
    "org/a@b@1",
    "m@1",
    "m@1",
]


def version(model: str) -> Checkpoint:
    return new_checkpoint(
        event_id="e", occurred_at_us=1, model=model, version=1, uri="", weights_sha256="", code_version=""
    )


def node_updates(records: list[tuple[str, str, Any, int]], now_us: int) -> Any:
    """Return the updates of records and then the state, as the Node example gives them."""
    program = PROGRAM % (json.dumps(FOLD.as_uri()), now_us)
    result = subprocess.run(
        [require_tool("Node"), "--input-type=module", "-e", program],
        input=json.dumps(records), capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    return json.loads(result.stdout)


def status(worker: str, occurred_at_us: int) -> WorkerStatus:
    return new_worker_status(
        event_id=worker, occurred_at_us=occurred_at_us, worker_id=worker, engine="torch", url="http://127.0.0.1:1",
        model="m", state="serving",
    )  # fmt: skip


def test_the_broker_s_clock_says_which_worker_is_live() -> None:
    now_us = 100_000_000
    records = [(status("behind", 0), now_us), (status("ahead", 2 * now_us), 0)]
    fold = ModelUpdates()
    expected = [
        update.fields() for record, at_us in records for update in fold.worker(record["worker_id"], record, at_us)
    ]
    expected += [update.fields() for update in fold.state(now_us, 6.0)]
    assert [one["worker"] for one in expected] == ["behind", "ahead", "behind"]
    found = node_updates([("worker-status", record["worker_id"], record, at_us) for record, at_us in records], now_us)
    assert [one["worker"] for one in found] == ["behind", "ahead", "behind"]


def test_deleted_keys_of_another_form_change_nothing() -> None:
    records: list[tuple[str, Any]] = [(f"{model}@1", version(model)) for model in ("m", "org/a@b")]
    records += [(key, None) for key in KEYS]
    fold = ModelUpdates()
    expected = [update.fields() for key, record in records for update in fold.checkpoint(key, record)]
    expected += [update.fields() for update in fold.state(0, 1.0)]
    assert node_updates([("checkpoints", key, record, 0) for key, record in records], 0) == expected
    changes = [(one["change"], one["model"]) for one in expected]
    assert changes[:4] == [("published", "m"), ("published", "org/a@b"), ("removed", "org/a@b"), ("removed", "m")]

"""Check the fold of the Node example against the Python one for deleted keys of any form."""

import json
import subprocess
from pathlib import Path
from typing import Any

from required_tools import require_tool

from stepstream.topics.events import Checkpoint, new_checkpoint
from stepstream.versions.updates import ModelUpdates

FOLD = Path(__file__).parents[3] / "examples/node/model_fold.js"
PROGRAM = """
import { readFileSync } from "node:fs";
import { Models } from %s;
const models = new Models();
const updates = JSON.parse(readFileSync(0)).flatMap(([key, record]) => models.apply("checkpoints", key, record));
console.log(JSON.stringify([...updates, ...models.state(0)]));
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


def test_deleted_keys_of_another_form_change_nothing() -> None:
    node = require_tool("Node")
    records: list[tuple[str, Any]] = [(f"{model}@1", version(model)) for model in ("m", "org/a@b")]
    records += [(key, None) for key in KEYS]
    program = PROGRAM % json.dumps(FOLD.as_uri())
    result = subprocess.run(
        [node, "--input-type=module", "-e", program],
        input=json.dumps(records), capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    fold = ModelUpdates()
    expected = [update.fields() for key, record in records for update in fold.checkpoint(key, record)]
    expected += [update.fields() for update in fold.state(0, 1.0)]
    assert json.loads(result.stdout) == expected
    changes = [(one["change"], one["model"]) for one in expected]
    assert changes[:4] == [("published", "m"), ("published", "org/a@b"), ("removed", "org/a@b"), ("removed", "m")]

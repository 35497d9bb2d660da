"""Read the tokens that end a model's turn."""

import json
from pathlib import Path
from typing import Any


def read_end_tokens(folder: Path) -> frozenset[int]:
    """Return `eos_token_id` of config.json and of generation_config.json together; empty: neither names one.

    Some instruct models name their turn's end in generation_config.json only. Workers and vLLM stop at both.

    Raises:
        OSError: config.json cannot be read.
        ValueError: a file is not JSON, or an id is not a number.
    """
    ends: set[int] = set()
    for name in ("config.json", "generation_config.json"):
        file = folder / name
        if name == "config.json" or file.exists():
            config: dict[str, Any] = json.loads(file.read_bytes())
            ids = config.get("eos_token_id")
            ends |= {int(token) for token in (ids if isinstance(ids, list) else [ids]) if token is not None}
    return frozenset(ends)

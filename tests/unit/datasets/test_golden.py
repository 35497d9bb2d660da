"""Files that this package wrote stay readable: the committed ones give the same trajectory, and are written the same.

After a deliberate change of a format, write them again: `python tests/unit/datasets/test_golden.py` with `tests` on
PYTHONPATH; a change of the extension that cannot read the old ones needs a new version of it.
"""

from pathlib import Path

import orjson
import pytest
from stream_records import make_feedback, make_steps

from stepstream.datasets import FORMATS, Episode, Origin
from stepstream.datasets.episode import merged
from stepstream.datasets.files import documents, line_of
from stepstream.topics.events import new_message

DATA = Path(__file__).parents[2] / "data" / "datasets"
NOWHERE = Origin(dataset="", at_us=0)


def branched() -> Episode:
    """Three steps with tokens; a fourth, of a sub-agent's kind, that goes back to the first; an outcome."""
    steps = make_steps("golden", 3, group_id="g", tenant="acme", user="ada")
    [other] = make_steps("golden", 1, seed=1, group_id="g", tenant="acme", user="ada")
    other |= {
        "step_index": 3,
        "prompt_shared_step": 0,
        "prompt_shared_messages": 2,
        "messages": [new_message(role="user", content="And the other one?")],
        "end": "terminated",
    }
    return Episode([*steps, other], [make_feedback("golden", producer="test/1")], {0: 0.0, 1: 0.0, 2: 0.0, 3: 1.0})


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_golden(name: str) -> None:
    file = DATA / f"ours.{name}.jsonl"
    kept = [episode for place in documents(file) for episode in FORMATS[name].read(place.document, NOWHERE)]
    assert merged(kept) == branched()
    written = [orjson.loads(line_of(document)) for document in FORMATS[name].write(branched())]
    assert written == [place.document for place in documents(file)]


if __name__ == "__main__":
    for name, form in FORMATS.items():
        (DATA / f"ours.{name}.jsonl").write_bytes(b"".join(map(line_of, form.write(branched()))))

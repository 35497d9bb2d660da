"""The committed files stay readable, and writing their trajectory gives the same bytes.

After a deliberate change of a format, write them again: `python tests/unit/datasets/test_golden.py` with `tests` on
PYTHONPATH. An extension that cannot read the old files needs a new version.
"""

from pathlib import Path

import orjson
import pytest
from stream_records import make_feedback, make_steps

from stepstream.datasets import FORMATS, Episode, Origin
from stepstream.datasets.episode import merge
from stepstream.datasets.files import read_documents, to_line
from stepstream.topics.events import new_message

DATA = Path(__file__).parents[2] / "data" / "datasets"
NOWHERE = Origin(dataset="", at_us=0)


def branched() -> Episode:
    """Return three steps with tokens, a fourth that continues the first, and an outcome."""
    steps = make_steps("golden", 3, group_id="g", tenant="acme", user="ada")
    [branch] = make_steps("golden", 1, seed=1, group_id="g", tenant="acme", user="ada")
    branch |= {
        "step_index": 3,
        "prompt_shared_step": 0,
        "prompt_shared_messages": 2,
        "messages": [new_message(role="user", content="And the other one?")],
        "end": "terminated",
    }
    return Episode([*steps, branch], [make_feedback("golden", producer="test/1")], {0: 0.0, 1: 0.0, 2: 0.0, 3: 1.0})


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_committed_files_are_read_and_written_unchanged(name: str) -> None:
    file = DATA / f"ours.{name}.jsonl"
    read_back = [episode for item in read_documents(file) for episode in FORMATS[name].read(item.document, NOWHERE)]
    assert merge(read_back) == branched()
    written = [orjson.loads(to_line(document)) for document in FORMATS[name].write(branched())]
    assert written == [item.document for item in read_documents(file)]


if __name__ == "__main__":
    for name, form in FORMATS.items():
        (DATA / f"ours.{name}.jsonl").write_bytes(b"".join(map(to_line, form.write(branched()))))

"""Record the SDK's events in a list, and check that `govern` accepts them."""

from collections.abc import Iterator

import pytest

from stepstream import sdk
from stepstream.config import Settings
from stepstream.jobs.governance.validation import check_envelope, check_feedback, check_step
from stepstream.topics.codec import Codec
from stepstream.topics.ids import now_us


@pytest.fixture
def sink() -> Iterator[sdk.MemorySink]:
    sink = sdk.MemorySink()
    sdk.configure(Settings(), sink=sink)
    yield sink
    check_events(sink)
    sdk.close()


def check_events(sink: sdk.MemorySink) -> None:
    codec = Codec(Settings())
    for topic, key, record in sink.events:
        check_envelope(record, key.encode(), now_us(), 0)
        (check_step if topic == "steps" else check_feedback)(record)
        codec.body(topic, record)
    codec.close()

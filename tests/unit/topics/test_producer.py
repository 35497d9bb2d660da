"""The CloudEvents headers of an event."""

from datetime import UTC, datetime
from typing import Any

import pytest

from stepstream.config import KafkaSettings
from stepstream.topics.producer import EventProducer


@pytest.mark.parametrize("moments", [[0], [1_700_000_000_000_001, 1_700_000_000_999_999, 1_700_000_001_500_000, 5]])
def test_headers_hold_id_and_time_of_the_event(moments: list[int]) -> None:
    codec: Any = None
    producer = EventProducer(KafkaSettings(bootstrap="127.0.0.1:9"), codec, "gateway/0")
    for at in moments:
        headers = dict(producer._headers("steps", f"e{at}", at))
        time = headers.pop("ce_time")
        assert isinstance(time, bytes)
        assert datetime.fromisoformat(time.decode()) == datetime.fromtimestamp(at / 1e6, UTC)
        assert headers == {
            "ce_specversion": b"1.0",
            "ce_type": b"stepstream.Step",
            "ce_source": b"gateway/0",
            "content-type": b"application/avro",
            "ce_id": f"e{at}".encode(),
        }

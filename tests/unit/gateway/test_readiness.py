"""A gateway is ready unless it would lose events or can answer no call; without Kafka it stays ready."""

from dataclasses import replace

import pytest

from stepstream.services.gateway.readiness import GatewayState

READY = GatewayState(0.1, 3, "", keys_current=True, keys_known=True, upstreams=1)


@pytest.mark.parametrize(
    "state",
    [
        READY,
        replace(READY, kafka_fault="no broker answers at kafka:9092", spool_share=0.79),
        replace(READY, keys_current=False),
    ],
)
def test_a_gateway_that_serves_calls_and_keeps_events_is_ready(state: GatewayState) -> None:
    assert state.faults() == []
    assert state.body()["ready"] is True
    assert state.body()["kafka"] == (state.kafka_fault or "ok")


@pytest.mark.parametrize(
    ("state", "fault"),
    [
        (replace(READY, spool_share=0.81), "the spool is 81% full"),
        (replace(READY, keys_known=False, keys_current=False), "no API key is known"),
        (replace(READY, upstreams=0), "no inference worker"),
    ],
)
def test_a_gateway_that_would_lose_events_or_answers_nothing_is_not_ready(state: GatewayState, fault: str) -> None:
    assert not state.body()["ready"]
    assert fault in state.body()["faults"][0]

"""Run the controller of the control plane: `python -m stepstream.services.control`.

Several may run: one acts, the others wait. One that is killed or fenced leaves nothing half done.
"""

import logging
from collections.abc import Callable
from contextlib import ExitStack, closing

from confluent_kafka import KafkaException

from stepstream.config import Settings
from stepstream.core.process import Stop, run, serve_metrics
from stepstream.services.control import metrics
from stepstream.services.control.app import Controller
from stepstream.services.control.leadership import TRANSACTIONAL_ID, Leadership
from stepstream.services.control.log import ControlLog, NotCurrent
from stepstream.services.control.proposals import Proposals
from stepstream.services.control.queries import STORE_FAULTS, StoreQueries
from stepstream.services.control.shadow_replays import ShadowReplays
from stepstream.services.control.sink_position import SinkPosition
from stepstream.services.control.webhook import Webhook, open_webhook
from stepstream.topics.access import wait_for_access
from stepstream.topics.codec import Codec
from stepstream.topics.exclusive_producer import ExclusiveProducer, Fenced
from stepstream.topics.producer import DeliveryFailed

log = logging.getLogger("stepstream.services.control")

NAME = "control"
_WAIT_S = 0.2


def main(settings: Settings, stop: Stop) -> None:
    """Act while this controller is elected, else wait, until `stop`."""
    readiness = Readiness()
    serve_metrics(settings.metrics, lambda: readiness.fault)
    wait_for_access(settings.kafka, NAME, lambda: bool(stop))
    with (
        open_webhook(settings.control, metrics.count_message) as webhook,
        closing(Codec(settings)) as codec,
        Leadership(settings.kafka) as leadership,
    ):
        while not stop:
            metrics.LEADER.set(0)
            if leadership.is_leader(_WAIT_S):
                _act(settings, codec, leadership, webhook, readiness, stop)
            else:
                readiness.fault = ""  # it waits in reserve


class Readiness:
    """Why the process is not ready; empty: it is."""

    def __init__(self) -> None:
        self.fault = "it has not decided yet"


def _act(
    settings: Settings,
    codec: Codec,
    leadership: Leadership,
    webhook: Webhook | None,
    readiness: Readiness,
    stop: Stop,
) -> None:
    """Decide at the interval until another controller is elected or takes over."""
    with ExitStack() as stack:
        producer = ExclusiveProducer(settings.kafka, codec, NAME, TRANSACTIONAL_ID, lambda: bool(stop))
        try:
            # Ends the open transaction of the controller before, so that what is read afterwards is complete.
            producer.take_over()
            control_log = stack.enter_context(ControlLog(settings, codec))
            queries = stack.enter_context(closing(StoreQueries(settings)))
            position = stack.enter_context(closing(SinkPosition(settings.kafka)))
            proposals = stack.enter_context(Proposals(settings))
            shadows = stack.enter_context(ShadowReplays(settings))
            controller = Controller(settings, control_log, producer, queries, position, proposals, webhook, shadows)
            metrics.LEADER.set(1)
            log.info("this controller acts")
            while not stop and leadership.is_leader():
                with metrics.CYCLE.time():
                    readiness.fault = _attempt(controller.run_once)
                if readiness.fault:
                    stop.wait(settings.control.interval_s)
                else:
                    readiness.fault = _attempt(lambda: controller.wait(stop))
        except Fenced as error:
            log.warning("%s: this controller waits", error)
            leadership.rejoin()
        except (DeliveryFailed, KafkaException) as error:
            readiness.fault = f"Kafka does not answer: {error}"
            log.warning("%s", readiness.fault)
            stop.wait(settings.control.interval_s)


def _attempt(look: Callable[[], None]) -> str:
    """Decide; return why that failed, empty: it did not. The next cycle tries again."""
    try:
        look()
    except (*STORE_FAULTS, NotCurrent) as error:
        metrics.FAILED.inc()
        fault = (str(error).splitlines() or [type(error).__name__])[0]
        log.warning("nothing was decided: %s", fault)
        return fault
    return ""


if __name__ == "__main__":
    run(NAME, main)

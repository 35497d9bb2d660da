"""Run the embedded schema registry: `python -m stepstream.services.registry`."""

import asyncio
import logging
import socket

import uvicorn

from stepstream.config import Settings
from stepstream.core.process import Stop, run
from stepstream.services.basic_auth import BasicAuth
from stepstream.services.http_server import ServerConfig
from stepstream.services.listen import listen
from stepstream.services.registry import topic
from stepstream.services.registry.app import CONTENT_TYPE, create_app
from stepstream.services.registry.log import KafkaLog
from stepstream.topics.access import wait_for_access
from stepstream.topics.client import KafkaUnavailable

logger = logging.getLogger(__name__)

_UNAUTHORIZED = b'{"error_code":40101,"message":"Unauthorized: set schema_registry.user_info"}'


def main(settings: Settings, stop: Stop) -> None:
    """Replay the schemas topic, then serve until SIGTERM.

    Raises:
        KafkaUnavailable: no broker within `kafka.deadline_s`.
        Fatal: the port is taken, rights are missing, or the topic has the wrong partitions or cleanup policy.
    """
    listener = listen(settings.registry.host, settings.registry.port, "registry")
    kafka = settings.kafka.model_copy(update={"prefix": ""})  # the registry serves every prefix of the cluster
    wait_for_access(kafka, "registry", lambda: bool(stop))
    topic.ensure_topic(kafka)
    log = KafkaLog(kafka, settings.registry.write_timeout_s)
    try:
        if not log.replay(settings.kafka.deadline_s):
            raise KafkaUnavailable(f"no end of the schemas topic within {settings.kafka.deadline_s:g} s; check Kafka")
        logger.info("%d schemas; serving at http://%s:%d", len(log.view.schemas), *listener.getsockname()[:2])
        if not stop:
            asyncio.run(_serve(log, listener, settings))
    finally:
        log.close()


async def _serve(log: KafkaLog, listener: socket.socket, settings: Settings) -> None:
    user_info = settings.schema_registry.user_info.get_secret_value()
    app = BasicAuth(create_app(log), user_info, _UNAUTHORIZED, CONTENT_TYPE)
    config = ServerConfig(app, settings.http, timeout_graceful_shutdown=5, lifespan="off")
    await uvicorn.Server(config).serve(sockets=[listener])


if __name__ == "__main__":
    run("registry", main)

"""Name the resource and the remedy when Kafka's authorizer refuses a program."""

import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient

from stepstream.config import KafkaSettings, SettingsError
from stepstream.core.process import Fatal
from stepstream.topics.acls import Acl, acls_of
from stepstream.topics.client import KafkaUnavailable, client_config, reporting_invalid_settings, wait_for_kafka

log = logging.getLogger(__name__)

_RESOURCES = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "topic",
    KafkaError.GROUP_AUTHORIZATION_FAILED: "group",
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "transactional id",
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "cluster",
}
_ABSENT = (KafkaError.GROUP_ID_NOT_FOUND, KafkaError.UNKNOWN_TOPIC_OR_PART)
_TIMEOUT_S = 30.0
REMEDY = "give the user the rights that `stepstream topics acls` prints"


class AccessDenied(Fatal):
    """Kafka's authorizer refused a resource to this program's user. The message names both and the remedy."""


def denial(error: KafkaError, kafka: KafkaSettings, name: str) -> AccessDenied | None:
    """Return the refusal that an error reports; None: it reports something else.

    Args:
        error: of a client.
        kafka: the client's connection.
        name: name of the topic, group or transactional id that the client used, with the prefix.
    """
    resource = _RESOURCES.get(error.code())
    if resource is None:
        return None
    return AccessDenied(f"Kafka refuses {_user(kafka)} {resource} '{name}': {REMEDY}")


def check_created(created: Mapping[str, Future[Any]], kafka: KafkaSettings) -> None:
    """Wait for the creation of topics.

    Args:
        created: the client's answers by name, with the prefix.
        kafka: the client's connection.

    Raises:
        AccessDenied: the user may not create some; the message names all of these.
    """
    errors = {name: future.exception() for name, future in created.items()}
    refused = [
        f"'{name}'"
        for name, error in sorted(errors.items())
        if isinstance(error, KafkaException) and error.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    ]
    if refused:
        raise AccessDenied(f"Kafka refuses {_user(kafka)} Create on topic {', '.join(refused)}: {REMEDY}")


def _user(kafka: KafkaSettings) -> str:
    if not kafka.uses_sasl:
        return "this client"
    return f"user '{kafka.oauth_client_id if kafka.uses_oauth else kafka.sasl_username}'"


def wait_for_access(kafka: KafkaSettings, program: str, stopping: Callable[[], bool] = lambda: False) -> None:
    """Block until a broker answers, then check the program's rights.

    Raises:
        KafkaUnavailable: as `wait_for_kafka`.
        AccessDenied: as `check_access`.
        SettingsError: as `reporting_invalid_settings`.
    """
    wait_for_kafka(kafka, stopping)
    if stopping():
        return
    try:
        check_access(kafka, program)
    except KafkaException as error:  # it only serves the message: the work itself waits for busy brokers
        log.warning("could not ask Kafka for the rights of '%s': %s", program, error.args[0].str())


def report_access(kafka: KafkaSettings, program: str, stopping: Callable[[], bool]) -> threading.Thread:
    """Check the rights of a program that serves without Kafka too, in a thread; log which are missing."""

    def check() -> None:
        while not stopping():
            try:
                wait_for_access(kafka, program, stopping)
            except KafkaUnavailable:
                continue
            except (AccessDenied, SettingsError) as error:
                log.error("%s", error)
            return

    thread = threading.Thread(target=check, name="access", daemon=True)
    thread.start()
    return thread


def check_access(kafka: KafkaSettings, program: str) -> None:
    """Check that this program's user has its rights on topics and groups, on a cluster that knows the topics.

    Transactional ids cannot be asked about: their first use reports a missing right.

    Args:
        kafka: the program's connection.
        program: one of `acls.PROGRAMS`.

    Raises:
        AccessDenied: rights are missing; the message names all.
        KafkaException: the brokers do not answer.
    """
    with reporting_invalid_settings():
        admin = AdminClient(client_config(kafka))  # whole names, with the prefix
    acls = acls_of(program, kafka.prefix)
    topics = {acl.name: acl for acl in acls if acl.resource == "topic"}
    groups = {acl.name: acl for acl in acls if acl.resource == "group" and not acl.is_prefix}
    futures: list[tuple[Acl, Any]] = []
    if topics:
        described = admin.describe_topics(
            TopicCollection(list(topics)), include_authorized_operations=True, request_timeout=_TIMEOUT_S
        )
        futures += [(topics[name], future) for name, future in described.items()]
    if groups:
        found = admin.describe_consumer_groups(
            list(groups), include_authorized_operations=True, request_timeout=_TIMEOUT_S
        )
        futures += [(groups[name], future) for name, future in found.items()]
    missing = [text for acl, future in futures if (text := _missing(acl, future))]
    if missing:
        raise AccessDenied(f"Kafka refuses {_user(kafka)} {', '.join(missing)}: {REMEDY} for '{program}'")


def _missing(acl: Acl, future: Any) -> str:
    """Return the operations that are not allowed, with the resource; empty: all are."""
    try:
        allowed = future.result().authorized_operations
    except KafkaException as error:
        code = error.args[0].code()
        if code not in _RESOURCES:
            if code in _ABSENT:
                return ""
            raise
        allowed = []
    if allowed is None:
        return ""  # an old broker, or a group that does not exist yet
    names = {operation.name.replace("_", "") for operation in allowed}
    wanted = [operation for operation in acl.operations if operation.upper() not in names and "ALL" not in names]
    return f"{'/'.join(wanted)} on {acl.resource} '{acl.name}'" if wanted else ""

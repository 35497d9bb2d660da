"""Write access rights for Kafka's tools: `kafka-acls` commands and Strimzi's KafkaUsers. Pure."""

import shlex
from collections.abc import Sequence
from typing import Any

from stepstream.config import Settings
from stepstream.topics.acls import PROGRAMS, Acl, acls_of

STRIMZI = "kafka.strimzi.io/v1"
_FLAGS = {"topic": "--topic", "group": "--group", "transactional-id": "--transactional-id"}
_STRIMZI_TYPES = {"topic": "topic", "group": "group", "transactional-id": "transactionalId"}


def user_of(program: str, prefix: str) -> str:
    """Return the name of a program's user, as `stepstream-govern`."""
    return f"{prefix}stepstream-{program}"


def commands(settings: Settings, principal: str, programs: Sequence[str] = PROGRAMS) -> list[str]:
    """Return `kafka-acls` commands, one for each resource of each program.

    Args:
        settings: addresses and prefix.
        principal: principal of a program's user, with `{}` for its name: `User:{}`, or `User:CN={}` for mutual TLS.
        programs: programs to include.
    """
    prefix = settings.kafka.prefix
    lines = []
    for program in programs:
        for acl in acls_of(program, prefix):
            words = ["kafka-acls", "--bootstrap-server", ",".join(settings.kafka.brokers), "--add"]
            words += ["--allow-principal", principal.replace("{}", user_of(program, prefix))]
            words += [word for operation in acl.operations for word in ("--operation", operation)]
            words += [_FLAGS[acl.resource], acl.name]
            words += ["--resource-pattern-type", "prefixed"] if acl.is_prefix else []
            lines.append(shlex.join(words))
    return lines


def strimzi_users(
    settings: Settings, cluster: str, authentication: str, programs: Sequence[str] = PROGRAMS
) -> list[dict[str, Any]]:
    """Return a KafkaUser for each program.

    Args:
        settings: prefix of the names.
        cluster: name of the Kafka resource.
        authentication: `scram-sha-512` or `tls`.
        programs: programs to include.
    """
    prefix = settings.kafka.prefix
    return [
        {
            "apiVersion": STRIMZI,
            "kind": "KafkaUser",
            "metadata": {"name": user_of(program, prefix), "labels": {"strimzi.io/cluster": cluster}},
            "spec": {
                "authentication": {"type": authentication},
                "authorization": {"type": "simple", "acls": [_strimzi_acl(acl) for acl in acls_of(program, prefix)]},
            },
        }
        for program in programs
    ]


def _strimzi_acl(acl: Acl) -> dict[str, Any]:
    pattern = "prefix" if acl.is_prefix else "literal"
    resource = {"type": _STRIMZI_TYPES[acl.resource], "name": acl.name, "patternType": pattern}
    return {"resource": resource, "operations": list(acl.operations)}

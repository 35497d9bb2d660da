"""Derive the access rights of each program from the catalogue, for Kafka's authorizer. Pure.

A program authenticates as a user of its own. READ and WRITE imply DESCRIBE. Nobody else gets a right on these topics:
only `govern` reads raw steps, and only the learner writes checkpoints.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from stepstream.topics.catalogue import LABELED_TRAJECTORIES, TOPICS
from stepstream.topics.topic import Topic
from stepstream.topics.topic_plan import OWNED_TOPICS

Resource = Literal["topic", "group", "transactional-id"]

JOBS = ("govern", "label", "measure", "inspect", "judge", "verify", "store")
"""Jobs with a consumer group and transactions of their own, named `stepstream-JOB`."""
CONTROL = "control"
"""The controller of the control plane."""
OPERATOR = "operator"
"""People and their commands: `topics apply`, `erase`, `replay`, `copy` and the others."""
PROGRAMS = (
    *JOBS,
    "watch",
    "curate",
    "learner",
    "inference",
    "gateway",
    "console",
    CONTROL,
    "fleet",
    "sdk",
    OPERATOR,
    "registry",
)
"""Every program that connects to Kafka; `sdk`: agents that publish by themselves."""

# Words of the catalogue that are no programs.
_PROGRAMS_OF = {
    "SDK": ("sdk",),
    "any Kafka client": ("sdk",),
    "people": (OPERATOR,),
    "replay": (OPERATOR,),
    "export": (OPERATOR,),
    "erase": (OPERATOR,),
    "control plane": (CONTROL,),
}
_SCHEMAS = "_schemas"
_UNUSED_GROUP = "unused"
"""Group of consumers that are in none; the client asks for its coordinator all the same."""


@dataclass(frozen=True)
class Acl:
    """Rights of one program on one resource."""

    resource: Resource
    name: str
    """Name in the cluster, or its begin."""
    is_prefix: bool
    operations: tuple[str, ...]
    """In Kafka's names, sorted."""


def programs_of(words: Iterable[str]) -> frozenset[str]:
    """Return the programs that the writers or readers of a topic name."""
    return frozenset(program for word in words for program in _PROGRAMS_OF.get(word, (word,)))


def writers_of(topic: Topic) -> frozenset[str]:
    """Return the programs that may write to a topic."""
    return programs_of(topic.writers)


def readers_of(topic: Topic) -> frozenset[str]:
    """Return the programs that may read a topic."""
    return programs_of(topic.readers)


def acls_of(program: str, prefix: str = "") -> list[Acl]:
    """Return the rights of a program in a cluster.

    Args:
        program: one of `PROGRAMS`.
        prefix: `kafka.prefix`, before all names but the registry's: one registry serves every prefix.
    """
    if program == "registry":
        return _registry()
    return [*_topics(program, prefix), *_groups(program, prefix), *_transactions(program, prefix)]


def _topics(program: str, prefix: str) -> Iterator[Acl]:
    if program == OPERATOR:
        every = ("Alter", "AlterConfigs", "Create", "Delete", "Describe", "DescribeConfigs", "Read", "Write")
        for name in (*TOPICS, OWNED_TOPICS):
            yield Acl("topic", prefix + name, False, every)
        return
    for topic in TOPICS.values():
        operations = []
        if program in readers_of(topic):
            operations.append("Read")
        if program in writers_of(topic):
            operations.append("Write")
        if operations:
            yield Acl("topic", prefix + topic.name, False, tuple(operations))
    if program == CONTROL:  # how far the tables hold the log
        yield Acl("topic", prefix + LABELED_TRAJECTORIES, False, ("Describe",))


def _groups(program: str, prefix: str) -> Iterator[Acl]:
    yield Acl("group", prefix + _UNUSED_GROUP, False, ("Describe",))
    if program in JOBS or program == CONTROL:
        yield Acl("group", f"{prefix}stepstream-{program}", False, ("Read",))
    if program == CONTROL:
        yield Acl("group", f"{prefix}stepstream-store", False, ("Describe",))
    if program == "gateway":
        yield Acl("group", f"{prefix}otlp", False, ("Read",))
    if program == OPERATOR:
        yield Acl("group", f"{prefix}otlp", False, ("Describe",))
        # `topics copy` sets the positions of all jobs.
        yield Acl("group", f"{prefix}stepstream-", True, ("Describe", "Read"))


def _transactions(program: str, prefix: str) -> Iterator[Acl]:
    operations = ("Describe", "Write")
    if program in JOBS:  # each worker has one, with the host and folder in its name
        yield Acl("transactional-id", f"{prefix}stepstream-{program}-", True, operations)
    if program == "learner":  # the model's name follows
        yield Acl("transactional-id", f"{prefix}learner/", True, operations)
        yield Acl("transactional-id", f"{prefix}retention/", True, operations)
    if program == CONTROL:
        yield Acl("transactional-id", f"{prefix}control", False, operations)
    if program == OPERATOR:
        yield Acl("transactional-id", f"{prefix}stepstream-", True, operations)
        yield Acl("transactional-id", f"{prefix}learner/", True, operations)


def _registry() -> list[Acl]:
    return [
        Acl("topic", _SCHEMAS, False, ("Create", "Describe", "DescribeConfigs", "Read", "Write")),
        Acl("group", "stepstream-registry-", True, ("Describe", "Read")),
        Acl("transactional-id", f"stepstream-registry-{_SCHEMAS}", False, ("Describe", "Write")),
    ]

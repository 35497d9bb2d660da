"""Access rights follow the catalogue: each program gets what it needs, and nobody more."""

from stack_fixtures import with_settings

from stepstream.config import Settings
from stepstream.topics.acl_formats import commands, strimzi_users
from stepstream.topics.acls import OPERATOR, PROGRAMS, Acl, acls_of, readers_of, writers_of
from stepstream.topics.catalogue import SEALED_TOPICS, TOPICS


def rights(program: str, topic: str) -> set[str]:
    return {one for acl in acls_of(program) if (acl.resource, acl.name) == ("topic", topic) for one in acl.operations}


def those_who(operation: str, topic: str) -> set[str]:
    return {program for program in PROGRAMS if operation in rights(program, topic)} - {OPERATOR}


def test_every_writer_and_reader_of_the_catalogue_is_a_program() -> None:
    named = {program for topic in TOPICS.values() for program in readers_of(topic) | writers_of(topic)}
    assert named <= set(PROGRAMS)


def test_only_govern_reads_raw_steps_and_feedback() -> None:
    assert those_who("Read", "steps") == those_who("Read", "feedback") == {"govern"}


def test_only_the_learner_writes_checkpoints() -> None:
    assert those_who("Write", "checkpoints") == {"learner"}
    ids = {program for program in PROGRAMS for acl in acls_of(program) if acl.name.startswith("learner/")}
    assert ids == {"learner", OPERATOR}


def test_who_reads_or_writes_sealed_records_reads_the_keys() -> None:
    sealed = {program for name in SEALED_TOPICS for program in readers_of(TOPICS[name]) | writers_of(TOPICS[name])}
    assert sealed <= readers_of(TOPICS["subject-keys"])
    assert sealed <= readers_of(TOPICS["erasures"])


def test_a_job_has_its_own_group_and_transactions_and_no_others() -> None:
    others = [acl for acl in acls_of("label", "blue.") if acl.resource != "topic"]
    assert others == [
        Acl("group", "blue.unused", False, ("Describe",)),
        Acl("group", "blue.stepstream-label", False, ("Read",)),
        Acl("transactional-id", "blue.stepstream-label-", True, ("Describe", "Write")),
    ]


def test_no_program_but_the_registry_has_a_right_outside_the_prefix() -> None:
    names = {acl.name for program in PROGRAMS if program != "registry" for acl in acls_of(program, "blue.")}
    assert all(name.startswith("blue.") for name in names)


def test_commands_name_principal_operations_and_resource(base_settings: Settings) -> None:
    settings = with_settings(base_settings, kafka={"bootstrap": "k1:9093,[::1]", "prefix": "blue."})
    lines = commands(settings, "User:CN={}", ["label"])
    start = "kafka-acls --bootstrap-server 'k1:9093,[::1]:9092' --add --allow-principal User:CN=blue.stepstream-label"
    assert f"{start} --operation Read --topic blue.governed-steps" in lines
    ids = "--operation Describe --operation Write --transactional-id blue.stepstream-label-"
    assert f"{start} {ids} --resource-pattern-type prefixed" in lines


def test_strimzi_gets_a_user_for_each_program(base_settings: Settings) -> None:
    users = strimzi_users(base_settings, "main", "tls")
    assert [user["metadata"]["name"] for user in users] == [f"stepstream-{program}" for program in PROGRAMS]
    [label] = [user for user in users if user["metadata"]["name"] == "stepstream-label"]
    assert label["metadata"]["labels"] == {"strimzi.io/cluster": "main"}
    assert label["spec"]["authentication"] == {"type": "tls"}
    own = {"type": "transactionalId", "name": "stepstream-label-", "patternType": "prefix"}
    assert {"resource": own, "operations": ["Describe", "Write"]} in label["spec"]["authorization"]["acls"]

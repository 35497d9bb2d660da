"""`jars.lock` parses to exactly the jars that were written; malformed lines raise."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepstream.embedded.errors import StackError
from stepstream.embedded.jar_lock import KAFKA_VERSION, Jar, committed, digest, parse, render

WORDS = st.text("abcdefghijklmnopqrstuvwxyz0123456789.-_", min_size=1, max_size=20)
JARS = st.lists(
    st.builds(Jar, WORDS, WORDS, WORDS, st.binary(min_size=32, max_size=32).map(bytes.hex)),
    unique_by=lambda jar: jar.filename,
).map(lambda jars: tuple(sorted(jars)))


@given(JARS)
def test_a_rendered_lock_parses_to_the_same_jars(locked: tuple[Jar, ...]) -> None:
    assert parse(render(locked)) == locked


@given(JARS.filter(lambda jars: len(jars) > 1))
def test_the_digest_depends_on_the_jars_and_not_on_their_order(locked: tuple[Jar, ...]) -> None:
    assert digest(locked) == digest(tuple(reversed(locked)))
    assert digest(locked) != digest(locked[1:])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("group artefact 1.0", "line 1"),
        ("group artefact 1.0 abc", "line 1"),
        (f"g a 1.0 {'0' * 64}\nh a 1.0 {'1' * 64}", r"lists twice: a-1\.0\.jar"),
    ],
)
def test_a_malformed_lock_raises(line: str, message: str) -> None:
    with pytest.raises(StackError, match=message):
        parse(line)


def test_the_committed_lock_holds_kafka_and_log4j_in_one_version_each() -> None:
    names = {jar.artefact: jar.version for jar in committed()}
    assert len(names) == 46
    assert names["kafka_2.13"] == names["kafka-clients"] == KAFKA_VERSION
    assert names["log4j-core"] == names["log4j-slf4j-impl"]

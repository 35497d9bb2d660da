"""Test the report of what a command needs: the figures, and a remedy for each need that is not met."""

import pytest
from check_machine import COMMANDS, available_gb, report


@pytest.mark.parametrize("command", COMMANDS)
def test_a_large_machine_gets_no_warning(command: str) -> None:
    (line,) = report(command, 100.0, 64.0, installed=False)
    assert f"make {command} needs" in line
    assert "(100.0 free)" in line
    assert "downloads" in line
    assert "downloads" not in report(command, 100.0, 64.0, installed=True)[0]


def test_a_small_machine_is_warned_with_remedies() -> None:
    _, disk, memory = report("test", 1.0, 2.0, installed=False)
    assert "11.5 GB of disk are missing: make room" in disk
    assert "11.0 GB of memory are missing: end other programs, or run `make test TEST_PROCESSES=1`" in memory


def test_memory_that_is_unknown_is_not_warned_of() -> None:
    assert len(report("demo", 100.0, None, installed=True)) == 1


def test_the_memory_of_this_machine() -> None:
    found = available_gb()
    assert found is None or found > 0

"""The configuration of supervisord, parsed as supervisord parses it."""

import configparser
import os
import shlex
from pathlib import Path

import pytest

from stepstream.config import Settings
from stepstream.embedded.addresses import resolve_addresses
from stepstream.embedded.errors import StackError
from stepstream.embedded.processes import Process, stack_parts, start_order
from stepstream.embedded.supervisord import Supervisord, configuration

PROCESSES = [part for part in stack_parts(resolve_addresses(Settings())) if isinstance(part, Process)]


def read(text: str) -> configparser.RawConfigParser:
    parser = configparser.RawConfigParser()
    parser.read_string(text)
    return parser


def test_every_process_has_a_program_that_does_not_start_by_itself() -> None:
    parser = read(configuration(PROCESSES, Path("/data"), Path("/data/run/s.sock")))
    programs = [section.removeprefix("program:") for section in parser.sections() if section.startswith("program:")]
    assert programs == [process.name for process in PROCESSES]
    for process in PROCESSES:
        program = parser[f"program:{process.name}"]
        assert shlex.split(program["command"]) == process.command
        assert program["autostart"] == "false"
        assert program["stdout_logfile"] == f"/data/logs/{process.name}.log"
        assert int(program["stopwaitsecs"]) >= 30


def test_priorities_follow_the_start_order() -> None:
    parser = read(configuration(PROCESSES, Path("/data"), Path("/s.sock")))
    for rank, level in enumerate(start_order(PROCESSES)):
        for name in level:
            assert parser[f"program:{name}"]["priority"] == str(rank)


def test_only_a_process_that_may_end_stays_down_after_success() -> None:
    parser = read(configuration(PROCESSES, Path("/data"), Path("/s.sock")))
    assert parser["program:fleet"]["exitcodes"] == "0,2"
    assert parser["program:label"]["exitcodes"] == "2"
    assert {parser[section]["autorestart"] for section in parser.sections() if "program" in section} == {"unexpected"}


def test_a_folder_with_a_percent_sign_and_a_space_is_escaped() -> None:
    parser = read(configuration(PROCESSES[:1], Path("/50% of/data"), Path("/s.sock")))
    assert parser["supervisord"]["logfile"] % {} == "/50% of/data/logs/supervisord.log"
    assert (
        parser["program:broker"]["stdout_logfile"] % {} % {} == "/50% of/data/logs/broker.log"
    )  # supervisord expands it twice


@pytest.mark.parametrize("name", ["a ;b", "a #b", "a\nb"])
def test_a_folder_that_the_configuration_cannot_express_raises(tmp_path: Path, name: str) -> None:
    with pytest.raises(StackError, match="set STEPSTREAM_PATHS_DATA"):
        Supervisord(tmp_path / name).launch(PROCESSES, {})
    assert not list(tmp_path.iterdir())


def test_the_socket_of_a_deep_folder_moves_to_a_temporary_folder(tmp_path: Path) -> None:
    shallow = Supervisord(Path("/data"))
    assert shallow._socket(Path("/data/run")) == Path("/data/run/supervisor.sock")
    deep = Supervisord(tmp_path / ("d" * 120))
    path = deep._socket(tmp_path / ("d" * 120) / "run")
    assert len(os.fsencode(path)) <= 95
    assert path.parent.is_dir()
    deep.close()
    assert not path.parent.exists()

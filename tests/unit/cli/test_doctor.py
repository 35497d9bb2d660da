"""`stepstream doctor` reports parts that are down, incomplete or sound. Small HTTP servers stand in for the parts."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from stepstream.cli import doctor_checks, doctor_services
from stepstream.cli.doctor_services import Finding
from stepstream.cli.main import run
from stepstream.config import Settings, load
from stepstream.delivery.spool import SUFFIX
from stepstream.embedded.addresses import resolve_addresses
from stepstream.embedded.processes import Process, stack_parts
from stepstream.jobs.clickhouse.migrate import migrations
from stepstream.topics.catalogue import TOPICS

SUBJECTS = [topic.subject for topic in TOPICS.values()]


class Answers:
    """An HTTP server that answers every GET whose path contains a key with that key's text."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        self.faults: set[str] = set()
        self.redirect = ""
        self.asked: list[str] = []
        answers = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.rfile.read(int(self.headers.get("content-length", 0)))
                answers.asked.append(self.path)
                text = next((text for part, text in answers.texts.items() if part in self.path), None)
                text = None if self.path.partition("?")[0] in answers.faults else text
                self.send_response(307 if answers.redirect else 404 if text is None else 200)
                if answers.redirect:
                    self.send_header("location", answers.redirect)
                self.end_headers()
                self.wfile.write((text or "").encode())

            do_POST = do_GET

            def log_message(self, *arguments: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def answers() -> Iterator[Answers]:
    answers = Answers()
    thread = threading.Thread(target=answers.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield answers
    answers.server.shutdown()
    thread.join()
    answers.server.server_close()


def settings(**variables: str) -> Settings:
    return resolve_addresses(load(environment={f"STEPSTREAM_{name}": value for name, value in variables.items()}))


def test_a_registry_with_all_subjects_is_ok(answers: Answers) -> None:
    answers.texts |= {"/subjects/": '{"id": 1}', "/subjects": json.dumps(SUBJECTS)}
    url = answers.url.replace("//", "//user:hunter2@")
    at = settings(SCHEMA_REGISTRY_URL=f"{url},{url}/")
    finding = doctor_services.registry(at)
    assert finding.state == "ok"
    (part,) = [part for part in stack_parts(at) if part.name == "registry"]
    assert isinstance(part, Process)
    assert part.ready()  # `up` waits for the same check
    assert "hunter2" not in part.ready.address
    assert "hunter2" not in finding.detail


def test_a_registry_with_another_version_of_a_schema_names_it(answers: Answers) -> None:
    answers.texts |= {f"/subjects/{name}": '{"id": 1}' for name in SUBJECTS[1:]}
    answers.texts["/subjects/"] = ""
    answers.faults.add(f"/subjects/{SUBJECTS[0]}")
    answers.texts["/subjects"] = json.dumps(SUBJECTS)
    finding = doctor_services.registry(settings(SCHEMA_REGISTRY_URL=answers.url))
    assert (finding.state, finding.fix) == ("fault", "run `stepstream topics apply`")
    assert finding.detail.endswith(f"has other schemas than this version: {SUBJECTS[0]}")


def test_a_registry_without_a_subject_names_the_command_that_registers_it(answers: Answers) -> None:
    answers.texts["/subjects"] = json.dumps(SUBJECTS[1:])
    finding = doctor_services.registry(settings(SCHEMA_REGISTRY_URL=answers.url))
    assert finding == Finding(
        "registry", "fault", f"{answers.url} lacks {SUBJECTS[0]}", "run `stepstream topics apply`"
    )


@pytest.mark.parametrize("garbage", ["<html>", "{"])
def test_another_service_at_the_address_is_a_fault(answers: Answers, garbage: str) -> None:
    answers.texts["/"] = garbage
    at = settings(SCHEMA_REGISTRY_URL=answers.url, CLICKHOUSE_URL=answers.url)
    assert doctor_services.registry(at).state == "fault"
    assert doctor_services.store(at).state == "fault"


def test_a_store_without_its_tables_or_with_older_ones_is_a_fault(answers: Answers) -> None:
    names = [migration.name for migration in migrations()]
    answers.texts |= {"version()": "26.9.1\n", "count()": "12\t1\n", "SELECT%20name": "\n".join(names)}
    at = settings(CLICKHOUSE_URL=answers.url)
    finding = doctor_services.store(at)
    assert finding.state == "ok"
    assert "26.9.1, 12 tables" in finding.detail
    answers.texts["SELECT%20name"] = "\n".join(names[:-1])
    assert doctor_services.store(at).detail == f"{answers.url} has older tables: it lacks {names[-1]}"
    answers.texts["count()"] = "3\t0\n"
    assert doctor_services.store(at).fix == "run `stepstream store migrate`"


def test_missing_shared_secrets_are_a_warning_only_with_an_external_broker() -> None:
    shared = {"KAFKA_BOOTSTRAP": "kafka:9092", "GOVERN_PSEUDONYM_KEY": "a"}
    (finding,) = doctor_checks.secrets(settings(**shared))
    assert (finding.state, finding.fix) == (
        "warning",
        "set STEPSTREAM_SEAL_MASTER_KEY to the same value on every machine",
    )
    assert not list(doctor_checks.secrets(settings(**shared, SEAL_MASTER_KEY="legacy:b")))
    assert not list(doctor_checks.secrets(settings()))


def test_a_nearly_full_spool_is_a_fault(tmp_path: Path) -> None:
    at = settings(GATEWAY_SPOOL=str(tmp_path), GATEWAY_SPOOL_MB="1")
    writer = tmp_path / "writer-0"
    writer.mkdir()
    (writer / f"1{SUFFIX}").write_bytes(bytes(700_000))
    assert not list(doctor_checks.spool(at))
    (writer / f"2{SUFFIX}").write_bytes(bytes(200_000))
    (finding,) = doctor_checks.spool(at)
    assert finding.state == "fault"
    assert finding.detail.startswith("1 of 1 MB")


def test_variables_without_effect_are_listed() -> None:
    (finding,) = doctor_checks.variables(
        {"STEPSTREAM_GATEWAY_SERVICE_HOST": "10.0.0.1", "STEPSTREAM_KAFKA_BOOTSTRAP": "k:1"}
    )
    assert finding.detail == "variables without effect: STEPSTREAM_GATEWAY_SERVICE_HOST"


def test_the_remedy_for_a_part_that_is_down_depends_on_where_it_runs() -> None:
    embedded = doctor_services.registry(settings(REGISTRY_PORT="1"))
    assert "run `stepstream up`" in embedded.fix
    external = doctor_services.registry(settings(SCHEMA_REGISTRY_URL="http://127.0.0.1:1"))
    assert external.fix == "start it there, or set STEPSTREAM_SCHEMA_REGISTRY_URL"


def test_a_missing_extra_is_a_warning_with_the_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    version = doctor_checks._version
    monkeypatch.setattr(doctor_checks, "_version", lambda package: "" if package == "torch" else version(package))
    (finding,) = [finding for finding in doctor_checks.versions() if finding.state != "ok"]
    assert (finding.name, finding.state) == ("learner", "warning")
    assert finding.fix == "pip install 'stepstream[learner]'"


def test_a_taken_port_is_a_fault_unless_the_stack_holds_it(answers: Answers) -> None:
    port = answers.server.server_port
    at = settings(REGISTRY_PORT=str(port))
    (finding,) = [finding for finding in doctor_checks.ports(at) if str(port) in finding.detail]
    assert finding.fix == "stop the process that uses it, or set STEPSTREAM_REGISTRY_PORT"
    answers.texts["/subjects"] = "[]"
    assert not [finding for finding in doctor_checks.ports(at) if str(port) in finding.detail]


def test_the_exit_status_is_1_after_a_fault(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    findings = [Finding("disk", "ok", "9 GB"), Finding("learner", "warning", "not installed", "pip install it")]
    monkeypatch.setattr("stepstream.cli.doctor.all_findings", lambda settings: iter(findings))
    assert run(["doctor"]) == 0
    findings.append(Finding("broker", "fault", "down", "start it"))
    assert run(["doctor", "--json"]) == 1
    output = capsys.readouterr().out
    assert "-> pip install it" in output
    assert json.loads(output[output.index("[\n") :])[2]["fix"] == "start it"


def test_a_redirect_of_the_store_carries_no_password_to_another_host(answers: Answers) -> None:
    answers.redirect = answers.url.replace("127.0.0.1", "localhost") + "/elsewhere"
    found = doctor_services.store(settings(CLICKHOUSE_URL=answers.url, CLICKHOUSE_PASSWORD="secret"))
    assert found.state == "fault"
    assert len(answers.asked) == 1


def test_addresses_that_other_machines_reach_without_authentication_are_named() -> None:
    found = list(
        doctor_checks.open_addresses(settings(REGISTRY_HOST="0.0.0.0", CONSOLE_HOST="::", BROKER_HOST="10.0.0.1"))
    )
    assert [finding.name for finding in found] == ["broker", "registry", "console"]
    assert "STEPSTREAM_REGISTRY_HOST" in found[1].fix
    protected = settings(REGISTRY_HOST="0.0.0.0", SCHEMA_REGISTRY_USER_INFO="a:b")
    assert not list(doctor_checks.open_addresses(protected))
    assert not list(doctor_checks.open_addresses(settings(CONSOLE_HOST="0.0.0.0", CONSOLE_LOGIN="true")))
    assert not list(doctor_checks.open_addresses(settings()))


def test_secrets_that_every_process_gets_are_named() -> None:
    (found,) = doctor_checks.shared_secrets(settings(SEAL_MASTER_KEY="legacy:b", KAFKA_SASL_PASSWORD="hunter2"))
    assert "kafka.sasl_password, seal.master_key" in found.detail
    assert "hunter2" not in found.detail
    assert not list(doctor_checks.shared_secrets(settings()))

"""Test the protocol's edge cases over a log in memory; the contract suite compares it with other registries."""

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from stepstream.services.basic_auth import BasicAuth
from stepstream.services.registry import errors
from stepstream.services.registry.app import CONTENT_TYPE, create_app
from stepstream.services.registry.records import RegistryRecord
from stepstream.services.registry.view import Fold, View
from stepstream.services.registry.writes import Write


class MemoryLog:
    """A log that another instance may write to (`elsewhere`), seen at the next refresh."""

    def __init__(self) -> None:
        self.view: View = Fold().view()
        self.elsewhere: list[RegistryRecord] = []
        self.down = False
        self._fold = Fold()

    def _take(self, records: list[RegistryRecord]) -> None:
        for key, value in records:
            self._fold.apply(self._fold.next_offset, key, value)
        if records:
            self.view = self._fold.view()

    async def refresh(self) -> None:
        self._take(self.elsewhere)
        self.elsewhere = []

    async def write(self, decide: Callable[[View], Write]) -> Any:
        if self.down:
            raise errors.log_unreachable("no broker")
        write = decide(self.view)
        self._take(list(write.records))
        return write.answer


@pytest.fixture
def log() -> MemoryLog:
    return MemoryLog()


@pytest.fixture
async def client(log: MemoryLog) -> Any:
    transport = httpx.ASGITransport(create_app(log), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://registry") as client:
        yield client


def record(*names: str) -> dict[str, str]:
    fields = [{"name": name, "type": "int", "default": 0} for name in names]
    return {"schema": json.dumps({"type": "record", "name": "R", "namespace": "n", "fields": fields})}


async def code(answer: Any) -> tuple[int, int]:
    response = await answer
    assert response.headers["content-type"] == CONTENT_TYPE
    assert response.json()["message"]
    return response.status_code, response.json()["error_code"]


async def test_invalid_requests_get_confluents_error_codes(client: httpx.AsyncClient) -> None:
    post, get, put = client.post, client.get, client.put
    assert await code(post("/subjects/s/versions", content="{")) == (400, 400)
    assert await code(post("/subjects/s/versions", json=[])) == (400, 400)
    assert await code(post("/subjects/s/versions", content=b"x" * 2_000_001)) == (413, 413)
    assert await code(post("/subjects/s/versions", json={"schema": {"type": "int"}})) == (422, 42201)
    assert await code(post("/subjects/s/versions", json={"schema": json.dumps("x" * 1_000_000)})) == (422, 42201)
    assert await code(post("/subjects/s/versions", json={"schema": "{}", "schemaType": "JSON"})) == (422, 42201)
    for half_a_pair in (b'"{\\"type\\":\\"int\\",\\"doc\\":\\"\\\\ud800\\"}"', rb'"\"\ud800\""'):
        assert await code(post("/subjects/s/versions", content=b'{"schema":%b}' % half_a_pair)) == (422, 42201)
    references = [{"name": "n", "subject": "o", "version": 1}]
    assert await code(post("/subjects/s/versions", json=record("a") | {"references": references})) == (422, 42201)
    assert await code(get("/subjects/s/versions/0")) == (422, 42202)
    assert await code(get("/subjects/s/versions/first")) == (422, 42202)
    assert await code(get(f"/subjects/s/versions/{'9' * 5000}")) == (422, 42202)
    for unknown in ("0", "first", "²", "9" * 10, "9" * 5000):
        assert (await get(f"/schemas/ids/{unknown}")).status_code == 404
    assert await code(put("/config", json={"compatibility": "SOME"})) == (422, 42203)
    assert await code(put("/config", json={})) == (422, 42203)
    assert await code(get("/schemas/ids/one")) == (404, 404)
    assert await code(get("/nothing")) == (404, 404)
    assert await code(client.delete("/subjects")) == (405, 405)
    assert await code(get("/associations/resources/-/steps?resourceType=topic")) == (404, 404)


async def test_soft_and_permanent_deletes(client: httpx.AsyncClient) -> None:
    for names in ("a", "ab"):
        await client.post("/subjects/s/versions", json=record(*names))
    assert await code(client.delete("/subjects/none")) == (404, 40401)
    assert await code(client.delete("/subjects/s/versions/3")) == (404, 40402)
    assert await code(client.delete("/subjects/s?permanent=true")) == (404, 40405)
    assert await code(client.delete("/subjects/s/versions/1?permanent=true")) == (404, 40407)
    assert (await client.delete("/subjects/s/versions/latest")).json() == 2
    assert await code(client.delete("/subjects/s/versions/2")) == (404, 40406)
    assert (await client.get("/subjects/s/versions")).json() == [1]
    assert (await client.get("/subjects/s/versions?deleted=true")).json() == [1, 2]
    assert (await client.delete("/subjects/s")).json() == [1]
    assert await code(client.delete("/subjects/s")) == (404, 40404)
    assert (await client.get("/subjects")).json() == []
    assert (await client.get("/subjects?deleted=true")).json() == ["s"]
    assert await code(client.post("/subjects/s", json=record("a"))) == (404, 40401)
    assert (await client.post("/subjects/s?deleted=true", json=record("a"))).json()["version"] == 1
    assert (await client.get("/schemas/ids/2")).status_code == 200  # Old records must stay readable.
    assert (await client.delete("/subjects/s?permanent=true")).json() == [1, 2]
    assert await code(client.get("/schemas/ids/2")) == (404, 40403)


async def test_a_subject_can_be_reused_after_permanent_deletes_of_all_versions(
    client: httpx.AsyncClient,
) -> None:
    await client.post("/subjects/s/versions", json=record("x"))
    await client.delete("/subjects/s")
    await client.delete("/subjects/s/versions/1?permanent=true")
    await client.post("/subjects/s/versions", json=record("x"))
    assert (await client.get("/subjects/s/versions/latest")).status_code == 200
    assert (await client.get("/subjects")).json() == ["s"]


async def test_an_id_lists_its_subjects_and_versions(client: httpx.AsyncClient) -> None:
    for subject in ("s", "t", "dir/u"):
        assert (await client.post(f"/subjects/{subject}/versions", json=record("a"))).json() == {"id": 1}
    assert (await client.get("/schemas/ids/1/subjects")).json() == ["dir/u", "s", "t"]
    assert (await client.get("/schemas/ids/1/versions")).json()[1] == {"subject": "s", "version": 1}
    assert (await client.get("/schemas/ids/1/schema")).json()["name"] == "R"
    assert (await client.get("/schemas/ids/1?subject=s")).json().keys() == {"schema"}
    assert (await client.get("/subjects/dir%2Fu/versions/latest")).json()["subject"] == "dir/u"
    assert (await client.get("/subjects/s/versions/-1/schema")).json()["name"] == "R"
    assert (await client.get("/subjects?subjectPrefix=dir")).json() == ["dir/u"]
    assert (await client.get("/schemas/types")).json() == ["AVRO"]
    assert (await client.get("/mode")).json() == {"mode": "READWRITE"}
    assert await code(client.get("/mode/s")) == (404, 40409)


async def test_normalize(client: httpx.AsyncClient) -> None:
    await client.post("/subjects/s/versions", json=record("a"))
    other = json.loads(record("a")["schema"]) | {"name": "n.R"}
    del other["namespace"]
    full = {"schema": json.dumps(other)}
    assert await code(client.post("/subjects/s", json=full)) == (404, 40403)
    assert (await client.post("/subjects/s?normalize=true", json=full)).json()["version"] == 1
    assert (await client.post("/subjects/s/versions?normalize=true", json=full)).json() == {"id": 1}
    assert (await client.post("/subjects/s/versions", json=full)).json() == {"id": 2}
    await client.post("/subjects/t/versions?normalize=true", json=record("a"))
    assert json.loads((await client.get("/subjects/t/versions/1")).json()["schema"]) == other


async def test_compatibility_checks(client: httpx.AsyncClient) -> None:
    check = "/compatibility/subjects/s/versions"
    required = json.loads(record("a")["schema"])
    required["fields"].append({"name": "b", "type": "int"})
    bad = {"schema": json.dumps(required)}
    assert (await client.post(check + "/latest", json=bad)).json() == {"is_compatible": True}
    assert await code(client.post(check + "/1", json=bad)) == (404, 40401)
    await client.post("/subjects/s/versions", json=record("a"))
    assert (await client.post(check + "/latest", json=bad)).json() == {"is_compatible": False}
    verbose = (await client.post(check + "?verbose=true", json=bad)).json()
    assert "reader_field_missing_default_value" in verbose["messages"][0]
    assert await code(client.post(check + "/2", json=bad)) == (404, 40402)
    assert await code(client.post("/subjects/s/versions", json=bad)) == (409, 409)
    await client.put("/config/s", json={"compatibility": "forward"})
    assert (await client.post(check, json=bad)).json() == {"is_compatible": True}


async def test_levels(client: httpx.AsyncClient) -> None:
    assert (await client.get("/config")).json() == {"compatibilityLevel": "FULL_TRANSITIVE"}
    assert await code(client.get("/config/s")) == (404, 40408)
    assert await code(client.delete("/config/s")) == (404, 40408)
    assert (await client.put("/config", json={"compatibility": "NONE"})).json() == {"compatibility": "NONE"}
    assert (await client.get("/config/s?defaultToGlobal=true")).json() == {"compatibilityLevel": "NONE"}
    await client.put("/config/s", json={"compatibility": "FULL"})
    assert (await client.get("/config/s")).json() == {"compatibilityLevel": "FULL"}
    assert (await client.delete("/config/s")).json() == {"compatibilityLevel": "FULL"}
    await client.delete("/config")
    assert (await client.get("/config")).json() == {"compatibilityLevel": "FULL_TRANSITIVE"}


async def test_another_instances_writes_are_read_before_a_404(client: httpx.AsyncClient, log: MemoryLog) -> None:
    other = MemoryLog()
    async with httpx.AsyncClient(transport=httpx.ASGITransport(create_app(other)), base_url="http://other") as there:
        await there.post("/subjects/s/versions", json=record("a"))
    log.elsewhere = [(key, value) for key, value in other._fold._values.items()]
    assert (await client.get("/schemas/ids/1")).status_code == 200


async def test_reads_work_without_a_broker(client: httpx.AsyncClient, log: MemoryLog) -> None:
    await client.post("/subjects/s/versions", json=record("a"))
    log.down = True
    assert (await client.get("/subjects/s/versions/latest")).status_code == 200
    assert (await client.post("/subjects/s/versions", json=record("a"))).json() == {"id": 1}
    assert await code(client.post("/subjects/s/versions", json=record("b"))) == (500, 50003)
    log.down = False
    assert (await client.post("/subjects/s/versions", json=record("b"))).json() == {"id": 2}


async def test_an_internal_error_is_answered_as_json(
    client: httpx.AsyncClient, log: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "view", None)
    assert await code(client.get("/subjects")) == (500, 50001)


async def test_metrics(client: httpx.AsyncClient) -> None:
    await client.get("/subjects")
    assert 'stepstream_registry_answers_total{method="GET",status="200"}' in (await client.get("/metrics")).text


async def test_callers_need_the_credentials_of_the_settings(log: MemoryLog) -> None:
    app = BasicAuth(create_app(log), "me:sécret", b"{}", CONTENT_TYPE)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://registry") as client:
        assert (await client.get("/subjects")).status_code == 401
        assert (await client.get("/subjects", auth=("me", "wrong"))).status_code == 401
        assert (await client.get("/subjects", headers=[(b"authorization", b"Basic \xff")])).status_code == 401
        assert (await client.get("/subjects", auth=("me", "sécret"))).status_code == 200
        assert (await client.get("/metrics")).status_code == 200


async def test_without_credentials_in_the_settings_everybody_may_call(log: MemoryLog) -> None:
    app = BasicAuth(create_app(log), "", b"{}", CONTENT_TYPE)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://registry") as client:
        assert (await client.get("/subjects")).status_code == 200


async def test_a_registry_that_serves_is_ready_without_credentials(log: MemoryLog) -> None:
    app = BasicAuth(create_app(log), "me:secret", b"{}", CONTENT_TYPE)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://registry") as client:
        assert (await client.get("/ready")).status_code == 200
        assert (await client.get("/subjects")).status_code == 401

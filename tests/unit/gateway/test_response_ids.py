"""Ids of responses in the operator's account are bound to the tenant that got them."""

from typing import Any

import pytest
from api_key_records import key_grant
from hypothesis import given
from hypothesis import strategies as st

from stepstream.services.gateway.errors import Forbidden, UnknownResponse
from stepstream.services.gateway.response_ids import AccountIds, check_objects, with_original_id

ACCOUNT = AccountIds(b"sk-operator")


@given(st.text(max_size=80), st.text(min_size=1, max_size=20))
def test_a_tenant_gets_its_ids_back_at_any_gateway(response_id: str, tenant: str) -> None:
    tagged = ACCOUNT.of(tenant).tagged(response_id)
    assert AccountIds(b"sk-operator").of(tenant).original(tagged) == response_id


@given(st.text(max_size=80))
def test_an_id_of_another_tenant_or_account_does_not_exist(response_id: str) -> None:
    tagged = ACCOUNT.of("acme").tagged(response_id)
    guesses = [(ACCOUNT, "other", tagged), (AccountIds(b"other"), "acme", tagged), (ACCOUNT, "acme", response_id)]
    for account, tenant, guess in guesses:
        with pytest.raises(UnknownResponse):
            account.of(tenant).original(guess)


@pytest.mark.parametrize("guess", ["", ".", "resp_1", "resp_1.", "resp_1.é"])
def test_a_guess_is_unknown(guess: str) -> None:
    with pytest.raises(UnknownResponse):
        ACCOUNT.of("acme").original(guess)


def test_tenants_whose_names_run_into_an_id_do_not_share_it() -> None:
    assert ACCOUNT.of("a").tagged("b") != ACCOUNT.of("ab").tagged("")


@pytest.mark.parametrize(
    "body",
    [
        {"id": "resp_2", "object": "response", "previous_response_id": "resp_1"},
        {"type": "response.created", "response": {"id": "resp_2", "previous_response_id": "resp_1"}},
        {"id": "resp_2", "object": "response.deleted", "previous_response_id": "resp_1"},
    ],
)
def test_a_reply_and_its_events_have_tagged_ids(body: dict[str, Any]) -> None:
    ids = ACCOUNT.of("acme")
    assert ids.tag_reply(body)
    response = body.get("response", body)
    assert [ids.original(response[name]) for name in ("id", "previous_response_id")] == ["resp_2", "resp_1"]


@pytest.mark.parametrize(
    "body",
    [{"object": "list", "id": "x"}, {"type": "response.output_text.delta", "delta": "x"}, {"response": "text"}],
)
def test_other_bodies_are_unchanged(body: dict[str, Any]) -> None:
    assert not ACCOUNT.of("acme").tag_reply(body)


def test_the_provider_gets_its_own_id() -> None:
    ids = ACCOUNT.of("acme")
    request = {"model": "m", "previous_response_id": ids.tagged("resp_1")}
    assert with_original_id(request, ids) == {"model": "m", "previous_response_id": "resp_1"}
    assert with_original_id({"previous_response_id": None}, ids) == {"previous_response_id": None}
    with pytest.raises(UnknownResponse):
        with_original_id({"previous_response_id": ["resp_1"]}, ids)


@pytest.mark.parametrize(
    ("request_fields", "path"),
    [
        ({"conversation": "conv_1"}, "/v1/conversations/"),
        ({"conversation": {"id": "conv_1"}}, "/v1/conversations/"),
        ({"prompt": {"id": "pmpt_1"}}, "/v1/prompts/"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "/v1/conversations/"),
        ({"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "file-1"}]}]}, "/v1/files/"),
        ({"messages": [{"content": [{"type": "file", "file": {"file_id": "file-1"}}]}]}, "/v1/files/"),
        ({"tools": [{"type": "file_search", "vector_store_ids": ["vs_1"]}]}, "/v1/vector_stores/"),
        ({"tools": [{"type": "code_interpreter", "container": "cntr_1"}]}, "/v1/containers/"),
        ({"container": {"skills": [{"skill_id": "s"}]}}, "/v1/containers/"),
    ],
)
def test_stored_objects_of_the_account_need_their_path(request_fields: dict[str, Any], path: str) -> None:
    with pytest.raises(Forbidden, match=f"does not declare the path {path}"):
        check_objects(request_fields, key_grant())
    check_objects(request_fields, key_grant(paths=["/v1/*"]))


@pytest.mark.parametrize(
    "request_fields",
    [
        {"tools": [{"type": "function", "parameters": {"properties": {"file_id": {"type": "string"}}}}]},
        {"messages": [{"content": [{"type": "tool_use", "input": {"file_id": "mine"}}]}]},
        {"metadata": {"conversation": "7"}, "input": "file_id conversation"},
        {"conversation": None, "prompt": None},
    ],
)
def test_names_that_the_caller_chooses_are_no_stored_objects(request_fields: dict[str, Any]) -> None:
    check_objects(request_fields, key_grant())

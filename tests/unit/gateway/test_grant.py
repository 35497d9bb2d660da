"""An API key permits the paths, models and consent that it declares, until its end."""

import pytest
from api_key_records import key_grant

from stepstream.services.gateway.errors import Forbidden, Unauthorized
from stepstream.services.gateway.grant import ANYTHING, stricter
from stepstream.topics.events import Consent


@pytest.mark.parametrize(
    ("method", "path", "permitted"),
    [
        ("GET", "/v1/models", True),
        ("GET", "/v1/models/gpt-x", True),
        ("DELETE", "/v1/models/gpt-x", False),
        ("POST", "/v1/messages/count_tokens", True),
        ("POST", "/v1/embeddings", False),
        ("GET", "/v1/files", False),
        ("POST", "/v1/fine_tuning/jobs", False),
        ("GET", "/v1/responses/resp_1", False),
    ],
)
def test_a_key_that_declares_no_path_reaches_nothing_of_the_providers_account(
    method: str, path: str, permitted: bool
) -> None:
    """So do keys of earlier releases, which declare none."""
    assert key_grant().may_use(method, path) is permitted
    assert ANYTHING.may_use(method, path)


def test_a_key_reaches_the_paths_that_it_declares() -> None:
    grant = key_grant(paths=["/v1/embeddings", "/v1/files/*"])
    grant.check_path("POST", "/v1/embeddings")
    grant.check_path("DELETE", "/v1/files/file-1")
    with pytest.raises(Forbidden, match=r"does not declare the path /v1/files; it declares: /v1/embeddings, /v1/files"):
        grant.check_path("GET", "/v1/files")


@pytest.mark.parametrize("path", ["/v1//files", "/v1/./files", "/v1/x//files"])
def test_a_path_that_an_upstream_may_read_as_another_is_refused(path: str) -> None:
    assert not key_grant(paths=["/v1/*"]).may_use("GET", path)


def test_a_key_may_call_the_models_that_it_declares() -> None:
    grant = key_grant(models=["gpt-*", "demo"])
    assert [grant.may_call(model) for model in ("gpt-4", "demo", "demo-2", "")] == [True, True, False, False]
    with pytest.raises(Forbidden, match=r"does not declare the model 'other'; it declares: gpt-\*, demo"):
        grant.check_model("other")
    with pytest.raises(Forbidden, match=r"requests that name no model \(pattern \*\)"):
        grant.check_model("")
    with pytest.raises(Forbidden, match="it declares: nothing"):
        key_grant(models=[]).check_model("gpt-4")
    key_grant(models=["*"]).check_model("")


def test_a_key_of_an_earlier_release_may_call_every_model_with_any_consent() -> None:
    grant = key_grant()
    grant.check_model("any")
    grant.check_end(2**62)
    assert grant.capped("train") == "train"


@pytest.mark.parametrize(
    ("ceiling", "stated", "recorded"),
    [
        ("train", "train", "train"),
        ("analyse", "train", "analyse"),
        ("analyse", "none", "none"),
        ("none", "train", "none"),
    ],
)
def test_a_keys_ceiling_lowers_consent_and_never_raises_it(ceiling: Consent, stated: Consent, recorded: str) -> None:
    assert key_grant(consent=ceiling).capped(stated) == recorded
    assert stricter(ceiling, stated) == stricter(stated, ceiling)
    assert ANYTHING.capped(stated) == stated


def test_a_key_is_refused_from_its_end_on() -> None:
    grant = key_grant(ends_at_us=1_000_000)
    grant.check_end(999_999)
    with pytest.raises(Unauthorized, match=r"ended at 1970-01-01T00:00:01\+00:00"):
        grant.check_end(1_000_000)

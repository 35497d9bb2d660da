"""Bind the ids of a provider's stored responses to the tenant that made them. Pure.

Tenants that share the operator's account at a provider share its stored responses too: the provider knows only the
account. So a call with an API key gets each response id with a tag, `ID.TAG`, and the id is accepted only with the tag
of the call's tenant. The tag is a keyed hash of tenant and id under the provider's key, which all gateways have in
common: nothing is stored, and any gateway can check any id, also after a restart. With another key for the provider,
earlier ids are unknown.
"""

from base64 import urlsafe_b64encode
from hashlib import blake2b
from hmac import compare_digest
from typing import Any

from stepstream.services.gateway.errors import UnknownResponse
from stepstream.services.gateway.grant import Grant

_TAG_BYTES = 16
_IDS = ("id", "previous_response_id")
_OBJECTS = {
    "file_id": "/v1/files/",
    "file_ids": "/v1/files/",
    "vector_store_ids": "/v1/vector_stores/",
    "conversation": "/v1/conversations/",
    "container": "/v1/containers/",
    "skill_id": "/v1/skills/",
}
"""Path of the stored objects that a field of a request names."""
_ITEM = "item_reference"
_OF_THE_CALLER = frozenset({"parameters", "input_schema", "schema", "json_schema", "metadata"})
"""Fields whose content the caller names as it likes; so is an `input` that is an object, as of Anthropic's tools."""


class AccountIds:
    """The response ids of one provider's account."""

    def __init__(self, api_key: bytes) -> None:
        """`api_key`: the operator's key for the provider."""
        self._key = blake2b(api_key, digest_size=32, person=b"response-ids").digest()

    def of(self, tenant: str) -> "TenantIds":
        """Return the ids of one tenant."""
        return TenantIds(self._key, tenant)


class TenantIds:
    """The response ids of one tenant in one account."""

    def __init__(self, key: bytes, tenant: str) -> None:
        self._key = key
        self._tenant = tenant

    def tagged(self, response_id: str) -> str:
        """Return the id for the caller."""
        return f"{response_id}.{self._tag(response_id)}"

    def original(self, tagged: str) -> str:
        """Return the provider's id.

        Raises:
            UnknownResponse: this tenant did not get the id from a gateway.
        """
        response_id, _, tag = tagged.rpartition(".")
        if not compare_digest(tag.encode(), self._tag(response_id).encode()):
            raise UnknownResponse(
                f"Previous response with id '{tagged}' not found: this API key's tenant has not got it from this "
                "gateway, or the provider's key has changed since; send the whole conversation as input"
            )
        return response_id

    def tag_reply(self, body: dict[str, Any]) -> bool:
        """Tag the ids in a reply or in an event of a stream; return True if it has any."""
        response = body.get("response", body)
        if not isinstance(response, dict) or not str(response.get("object", "response")).startswith("response"):
            return False
        named = [name for name in _IDS if isinstance(response.get(name), str)]
        for name in named:
            response[name] = self.tagged(response[name])
        return bool(named)

    def _tag(self, response_id: str) -> str:
        named = f"{self._tenant}\0{response_id}".encode("utf-8", "surrogatepass")
        return urlsafe_b64encode(blake2b(named, digest_size=_TAG_BYTES, key=self._key).digest()).decode().rstrip("=")


def with_original_id(request: dict[str, Any], ids: TenantIds) -> dict[str, Any]:
    """Return the request with the provider's `previous_response_id`.

    Raises:
        UnknownResponse: the id is not one of the tenant's.
    """
    previous = request.get("previous_response_id")
    if not previous:
        return request
    return request | {"previous_response_id": ids.original(str(previous))}


def check_objects(request: dict[str, Any], grant: Grant) -> None:
    """Check that the key declares the paths of all stored objects of the account that a call names.

    Raises:
        Forbidden: one is missing.
    """
    if request.get("prompt"):
        grant.check_path("GET", "/v1/prompts/")
    left: list[Any] = [request]
    while left:
        value = left.pop()
        if isinstance(value, list):
            left.extend(value)
        elif isinstance(value, dict):
            for name, path in _OBJECTS.items():
                if value.get(name):
                    grant.check_path("GET", path)
            if value.get("type") == _ITEM:
                grant.check_path("GET", "/v1/conversations/")
            left.extend(
                inner
                for name, inner in value.items()
                if name not in _OF_THE_CALLER and not (name == "input" and isinstance(inner, dict))
            )

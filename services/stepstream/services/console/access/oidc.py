"""Log people in at an OpenID Connect provider: authorization code with PKCE, by Authlib.

Nothing is kept between the two requests of a login: the browser keeps a signed cookie with a random id, from which and
from the console's key `state`, `nonce` and the code verifier are derived. So the verifier never leaves the console, and
several consoles behind one address share logins.
"""

import base64
import hashlib
import hmac
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import httpx2
import orjson
from authlib.common.errors import AuthlibBaseError
from authlib.integrations.httpx_client import OAuth2Client
from authlib.oidc.core import CodeIDToken
from joserfc import jwt
from joserfc.errors import InvalidKeyIdError, JoseError
from joserfc.jwk import KeySet

from stepstream.config import ConsoleSettings
from stepstream.config.base import reached_by_tls
from stepstream.services.console.access.identity import user_of_claims
from stepstream.services.console.users import User

FLOW_S = 600
"""Time to log in at the provider."""
_METADATA_S = 3600.0
_TIMEOUT_S = 10.0
_LEEWAY_S = 60
# Signatures by the provider's key pair only: with a shared secret, or none, others could sign.
_ALGORITHMS = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "Ed25519", "EdDSA"]


class LoginFailed(Exception):
    """The provider, or its answer, does not log the person in."""


@dataclass(frozen=True)
class Begun:
    """A login that has begun."""

    address: str
    """Page of the provider where the person logs in."""
    cookie: str
    """Value of the cookie that the answer of the provider must come with."""


class OidcClient:
    """A client of one provider. Thread-safe; each method blocks while the provider answers."""

    def __init__(
        self, config: ConsoleSettings, redirect_uri: str, key: bytes, clock: Callable[[], float] = time.time
    ) -> None:
        """`redirect_uri` is the console's address that the provider sends people back to; `key` signs the cookies."""
        self._config = config
        self._redirect_uri = redirect_uri
        self._key = key
        self._clock = clock
        self._metadata: tuple[float, dict[str, Any]] = (0.0, {})
        self._keys: tuple[float, KeySet] | None = None

    def begin(self, target: str) -> Begun:
        """Begin a login that ends at the console's address `target`.

        Raises:
            LoginFailed: the provider does not answer.
        """
        flow = orjson.dumps([secrets.token_urlsafe(24), target, self._clock() + FLOW_S])
        body = base64.urlsafe_b64encode(flow).decode()
        with self._client() as client:
            address, _ = client.create_authorization_url(
                self._provider()["authorization_endpoint"],
                state=self._derived(b"state", body),
                nonce=self._derived(b"nonce", body),
                code_verifier=self._derived(b"verifier", body),
            )
        return Begun(address, f"{body}.{self._derived(b'cookie', body)}")

    def finish(self, cookie: str, answer: Mapping[str, str]) -> tuple[User, str]:
        """Return the user and the target of a login.

        Args:
            cookie: the cookie of `begin`.
            answer: the query string that the provider sent the browser back with.

        Raises:
            LoginFailed: the answer is not that of this login, or the provider did not confirm it.
            NoAccess: the person's claims give no access.
        """
        body, _, mac = cookie.rpartition(".")
        if not hmac.compare_digest(mac.encode(), self._derived(b"cookie", body).encode()):
            raise LoginFailed("the login did not begin in this browser")
        _, target, ends_at = orjson.loads(base64.urlsafe_b64decode(body))
        if self._clock() > ends_at:
            raise LoginFailed(f"the login took more than {FLOW_S} s")
        if not hmac.compare_digest(answer.get("state", "").encode(), self._derived(b"state", body).encode()):
            raise LoginFailed("the answer belongs to another login")
        metadata = self._provider()
        if answer.get("iss", metadata["issuer"]) != metadata["issuer"]:
            raise LoginFailed("the answer is another provider's")
        if "code" not in answer:
            raise LoginFailed(f"the provider answered {answer.get('error', 'without a code')[:100]}")
        try:
            claims = self._claims(answer["code"], body)
        except (AuthlibBaseError, JoseError, httpx2.HTTPError, ValueError) as error:
            raise LoginFailed(f"the provider did not confirm the login: {type(error).__name__}: {error}") from error
        return user_of_claims(claims, self._config), target

    def _claims(self, code: str, body: str) -> dict[str, Any]:
        """Exchange the code; return the claims of the ID token and of the userinfo endpoint."""
        metadata = self._provider()
        with self._client() as client:
            token = client.fetch_token(
                metadata["token_endpoint"],
                grant_type="authorization_code",
                code=code,
                code_verifier=self._derived(b"verifier", body),
            )
            claims = self._id_claims(token, self._derived(b"nonce", body))
            if "userinfo_endpoint" not in metadata:
                return claims
            reply = client.get(metadata["userinfo_endpoint"])
            reply.raise_for_status()
            more = reply.json()
        # OpenID Connect Core 5.3.2: an answer about another person must not be used.
        if more.get("sub") != claims["sub"]:
            raise ValueError("the userinfo endpoint answers about another person")
        return {**more, **claims}

    def _id_claims(self, token: Mapping[str, Any], nonce: str) -> dict[str, Any]:
        """Return the claims of the ID token after the checks of OpenID Connect Core 3.1.3.7."""
        try:
            decoded = jwt.decode(token["id_token"], self._key_set(), algorithms=_ALGORITHMS)
        except InvalidKeyIdError:  # the provider has changed its keys
            decoded = jwt.decode(token["id_token"], self._key_set(newest=True), algorithms=_ALGORITHMS)
        client_id = self._config.oidc_client_id
        claims = CodeIDToken(
            decoded.claims,
            decoded.header,
            {
                "iss": {"essential": True, "value": self._provider()["issuer"]},
                "aud": {"essential": True, "value": client_id},
            },
            {"nonce": nonce, "client_id": client_id, "access_token": token.get("access_token")},
        )
        claims.validate(leeway=_LEEWAY_S)
        return dict(claims)

    def _provider(self) -> dict[str, Any]:
        """Return the provider's metadata (OpenID Connect Discovery 4), read at most once an hour."""
        read_at, metadata = self._metadata
        if metadata and self._clock() - read_at < _METADATA_S:
            return metadata
        metadata = self._fetch(f"{self._config.oidc_issuer}/.well-known/openid-configuration")
        if str(metadata.get("issuer", "")).rstrip("/") != self._config.oidc_issuer:
            raise LoginFailed(f"the provider calls itself {str(metadata.get('issuer'))[:200]}: set console.oidc_issuer")
        for name in ("authorization_endpoint", "token_endpoint", "jwks_uri", "userinfo_endpoint"):
            address = metadata.get(name)
            if name == "userinfo_endpoint" and address is None:
                continue
            if not isinstance(address, str) or not reached_by_tls(address):
                raise LoginFailed(f"the provider's {name} is not an https address")
        self._metadata = (self._clock(), metadata)
        return metadata

    def _key_set(self, *, newest: bool = False) -> KeySet:
        """Return the provider's keys, read at most once an hour, or now."""
        if newest or self._keys is None or self._clock() - self._keys[0] > _METADATA_S:
            self._keys = (self._clock(), KeySet.import_key_set(self._fetch(self._provider()["jwks_uri"])))  # type: ignore[arg-type]
        return self._keys[1]

    def _fetch(self, address: str) -> dict[str, Any]:
        try:
            reply = httpx2.get(address, timeout=_TIMEOUT_S)
            reply.raise_for_status()
            value = reply.json()
        except (httpx2.HTTPError, ValueError) as error:
            raise LoginFailed(f"the provider does not answer at {address}: {error}") from error
        if not isinstance(value, dict):
            raise LoginFailed(f"the provider's answer at {address} is not a JSON object")
        return value

    def _client(self) -> OAuth2Client:
        config = self._config
        return OAuth2Client(
            client_id=config.oidc_client_id,
            client_secret=config.oidc_client_secret.get_secret_value() or None,
            redirect_uri=self._redirect_uri,
            scope=" ".join(config.oidc_scopes),
            code_challenge_method="S256",
            timeout=_TIMEOUT_S,
        )

    def _derived(self, purpose: bytes, body: str) -> str:
        """Return 43 characters that only the console can compute."""
        mac = hmac.digest(self._key, b"stepstream console oidc " + purpose + b"\0" + body.encode(), hashlib.sha256)
        return base64.urlsafe_b64encode(mac).rstrip(b"=").decode()

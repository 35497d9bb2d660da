"""Admit requests: find the user of each, and refuse what the user may not call."""

import hmac
import time
from collections.abc import Callable, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from stepstream.config import ConsoleSettings, Settings
from stepstream.config.secrets import console_session_key
from stepstream.services.console.access.attempts import Attempts
from stepstream.services.console.access.passwords import is_password
from stepstream.services.console.access.sessions import (
    Session,
    action_token,
    credential_of,
    new_session,
    sign,
    verify,
)
from stepstream.services.console.endpoints import Endpoint
from stepstream.services.console.users import LOCAL, User, role_of
from stepstream.topics.events import ConsoleUser

TOKEN_HEADER = "x-csrf-token"


class Refused(Exception):
    """The request is not admitted."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Gate:
    """Decides who a request is from."""

    def __init__(
        self,
        settings: Settings,
        users: Callable[[], Mapping[str, ConsoleUser] | None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`users` returns the records by name; None: they are not known yet."""
        self.requires_login = settings.console.login
        self._key = console_session_key(settings)
        self._seconds = settings.console.session_hours * 3600
        self.is_secure = settings.console.public_url.startswith("https://")
        self._cookie = "__Host-stepstream" if self.is_secure else "stepstream"
        self._oidc_credential = _oidc_credential(settings.console)
        self._users = users
        self._clock = clock
        self._attempts = Attempts()

    def user_of(self, request: Request) -> User | None:
        """Return the user; None: nobody is logged in."""
        if not self.requires_login:
            return LOCAL
        session = verify(request.cookies.get(self._cookie, ""), self._key, self._clock())
        if session is None:
            return None
        if session.role:
            return self._user_of_provider(session)
        return self._known(session.name, session.credential)

    def token_of(self, request: Request) -> str:
        """Return the token that the actions of this request's session must carry."""
        return action_token(request.cookies.get(self._cookie, ""), self._key)

    def admit(self, request: Request, endpoint: Endpoint) -> User:
        """Return the user if the endpoint admits the request.

        Raises:
            Refused: nobody is logged in (401), or the user may not call it (403).
        """
        user = self.user_of(request)
        if user is None:
            raise Refused(401, "log in first")
        if not user.may(endpoint.role):
            raise Refused(403, f"this needs the role {endpoint.role}; yours is {user.role}")
        if endpoint.installation and user.tenant:
            raise Refused(403, f"this is about the whole installation; you see tenant {user.tenant} only")
        if endpoint.act is not None:
            self.check_token(request)
        return user

    def check_token(self, request: Request) -> None:
        """Refuse an action of another site's page.

        Raises:
            Refused: the request lacks the session's token (403).
        """
        # As bytes: `compare_digest` takes no other text than ASCII.
        if not hmac.compare_digest(request.headers.get(TOKEN_HEADER, "").encode(), self.token_of(request).encode()):
            raise Refused(403, "the session's token is missing or old: load the page again")

    def log_in(self, name: str, password: str) -> str:
        """Return the cookie of a new session. Blocks for about 0.1 s.

        Raises:
            Refused: name or password is wrong (401), the name failed too often (429), or the users are not known (503).
        """
        now = self._clock()
        if wait := self._attempts.wait_s(name, now):
            raise Refused(429, f"too many failed attempts: try again in {wait:.0f} s")
        users = self._users()
        if users is None:
            raise Refused(503, "the users have not been read from Kafka yet: try again in some seconds")
        record = users.get(name)
        digest = record["password_digest"] if record is not None and not record["removed"] else None
        if not is_password(password, digest) or record is None:
            self._attempts.fail(name, now)
            raise Refused(401, "name or password is wrong")
        self._attempts.succeed(name)
        return sign(new_session(name, _credential(record), self._ends_at()), self._key)

    def begin_oidc(self, user: User) -> str:
        """Return the cookie of a new session of a user whom the OpenID Connect provider has logged in."""
        return sign(new_session(user.name, self._oidc_credential, self._ends_at(), user.role, user.tenant), self._key)

    def is_user(self, name: str) -> bool:
        """Return True if there is a local user of this name."""
        return name in (self._users() or {})

    def set_cookie(self, response: Response, cookie: str) -> None:
        """Let the browser keep a session; an empty cookie ends it."""
        options: dict[str, Any] = {
            "path": "/",
            "httponly": True,
            "samesite": "strict",
            "secure": self.is_secure,
            "max_age": round(self._seconds) if cookie else 0,
        }
        response.set_cookie(self._cookie, cookie, **options)

    def _ends_at(self) -> float:
        return self._clock() + self._seconds

    def _user_of_provider(self, session: Session) -> User | None:
        role = role_of(session.role)
        if not self._oidc_credential or not hmac.compare_digest(session.credential, self._oidc_credential):
            return None
        return None if role is None else User(session.name, role, session.tenant)

    def _known(self, name: str, credential: str) -> User | None:
        record = (self._users() or {}).get(name)
        if record is None or record["removed"] or not hmac.compare_digest(_credential(record), credential):
            return None
        role = role_of(record["role"])
        return None if role is None else User(name, role, record["tenant"])


def _oidc_credential(config: ConsoleSettings) -> str:
    """Return a digest of the settings that give access; empty: there is no provider."""
    if not config.oidc_issuer:
        return ""
    return credential_of(
        config.oidc_issuer, config.oidc_client_id, config.oidc_role_claim, config.oidc_roles, config.oidc_tenant_claim
    )


def _credential(record: ConsoleUser) -> str:
    return credential_of(record["role"], record["tenant"], record["password_digest"])

"""Admit requests: find the user of each, and refuse what the user may not call."""

from starlette.requests import Request

from stepstream.services.console.endpoints import Endpoint
from stepstream.services.console.users import LOCAL, User


class Refused(Exception):
    """The request is not admitted."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Gate:
    """Finds the user of a request."""

    def user_of(self, request: Request) -> User | None:
        """Return the user; None: nobody is logged in."""
        return LOCAL

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
        return user

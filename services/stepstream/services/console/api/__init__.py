"""Answer the console's pages: one module a page, with its queries and its endpoints (`ENDPOINTS`)."""

from stepstream.services.console.api import overview, scope
from stepstream.services.console.endpoints import Endpoint

ENDPOINTS: tuple[Endpoint, ...] = (*overview.ENDPOINTS, *scope.ENDPOINTS)
"""Every endpoint of every page."""

"""Answer the console's pages: one module a page, with its queries and its endpoints (`ENDPOINTS`)."""

from stepstream.services.console.api import overview, people, review, rewards, scope, tools, trajectories
from stepstream.services.console.endpoints import Endpoint

ENDPOINTS: tuple[Endpoint, ...] = (
    *overview.ENDPOINTS,
    *people.ENDPOINTS,
    *review.ENDPOINTS,
    *rewards.ENDPOINTS,
    *scope.ENDPOINTS,
    *tools.ENDPOINTS,
    *trajectories.ENDPOINTS,
)
"""Every endpoint of every page."""

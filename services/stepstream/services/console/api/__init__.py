"""Answer the console's pages: one module a page, with its queries and its endpoints (`ENDPOINTS`)."""

from stepstream.services.console.api import (
    audit,
    curves,
    decisions,
    fleet,
    overview,
    people,
    pipeline,
    review,
    rewards,
    scope,
    settings,
    tools,
    trajectories,
)
from stepstream.services.console.endpoints import Endpoint

ENDPOINTS: tuple[Endpoint, ...] = (
    *audit.ENDPOINTS,
    *curves.ENDPOINTS,
    *decisions.ENDPOINTS,
    *fleet.ENDPOINTS,
    *overview.ENDPOINTS,
    *people.ENDPOINTS,
    *pipeline.ENDPOINTS,
    *review.ENDPOINTS,
    *rewards.ENDPOINTS,
    *scope.ENDPOINTS,
    *settings.ENDPOINTS,
    *tools.ENDPOINTS,
    *trajectories.ENDPOINTS,
)
"""Every endpoint of every page."""

"""Answer what the filters of the pages offer: models and agents of the user's tenant, and the tenants."""

from stepstream.services.console.api.sql import between
from stepstream.services.console.endpoints import TENANT, Answer, Call, reads

_MODELS = f"""
SELECT model, max(opened_at) AS newest FROM trajectories
WHERE {TENANT} AND {between("opened_at")} AND model != '' GROUP BY model ORDER BY newest DESC LIMIT 50
"""
_AGENTS = f"""
SELECT agent, count() AS rows FROM trajectories
WHERE {TENANT} AND {between("opened_at")} GROUP BY agent ORDER BY rows DESC LIMIT 200
"""
_TENANTS = f"SELECT DISTINCT tenant FROM trajectories WHERE {between('opened_at')} ORDER BY tenant LIMIT 500"


def tenants(call: Call, default: str = "24h") -> list[str]:
    """Return the tenants with trajectories in the range that a user of all tenants may choose; others: none.

    Args:
        call: the request.
        default: range of the page.
    """
    since, until = call.time_range(default)
    return [row["tenant"] for row in call.query_installation(_TENANTS, fresh_s=10.0, since=since, until=until)]


def models(call: Call) -> list[str]:
    """Return the models with trajectories in the range, the one with the newest first."""
    since, until = call.time_range()
    return [row["model"] for row in call.query(_MODELS, fresh_s=5.0, since=since, until=until)]


def chosen_model(call: Call, known: list[str]) -> str:
    """Return the model of the parameter `model`, or the first known one; empty: there is none."""
    return call.text("model") or (known[0] if known else "")


@reads("/api/scope")
def scope(call: Call) -> Answer:
    """Return the models, agents and tenants with trajectories in the range."""
    since, until = call.time_range()
    rows = call.query(_AGENTS, fresh_s=10.0, since=since, until=until)
    return {"models": models(call), "agents": [row["agent"] for row in rows], "tenants": tenants(call)}


ENDPOINTS = (scope,)

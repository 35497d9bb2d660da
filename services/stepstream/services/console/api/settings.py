"""Answer the page Settings: the effective settings with their sources, secrets masked."""

from stepstream.config import effective, load_with_origins, variable
from stepstream.services.console.endpoints import Answer, Call, reads


@reads("/api/settings", role="admin", installation=True)
def settings(call: Call) -> Answer:
    """Return every setting of this process."""
    return {
        "settings": [
            {
                "name": row.name,
                "variable": variable(*row.name.split(".", 1)),
                "value": row.value,
                "origin": row.origin,
                "description": row.description,
            }
            for row in effective(*load_with_origins())
        ]
    }


ENDPOINTS = (settings,)

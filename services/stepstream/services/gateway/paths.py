"""The paths of the gateway: a session may stand before them, and the version may be left out. Pure."""

SESSION = "/t/"
VERSION = "/v1"
# Without a version, only what is known to be a model API's goes through to upstreams.
_UNVERSIONED = (
    "/models",
    "/embeddings",
    "/completions",
    "/messages/",
    "/responses/",
    "/moderations",
    "/audio/",
    "/images/",
)


def take_session(path: str) -> tuple[str, str]:
    """The session in a path, or empty, and the path after it: `/t/s1/v1/messages` is `s1` and `/v1/messages`."""
    session = ""
    if path.startswith(SESSION):
        session, _, rest = path[len(SESSION) :].partition("/")
        path = "/" + rest
    # Anthropic's client puts the version before its paths, whether or not its base address ends with one.
    return session, path.removeprefix(VERSION) if path.startswith(f"{VERSION}{VERSION}/") else path


def versioned(path: str) -> str | None:
    """A path of a model API beginning with `/v1/`; None: it is not one, or climbs out of it."""
    if ".." in path.split("/"):
        return None
    if path.startswith(f"{VERSION}/"):
        return path
    return VERSION + path if path.startswith(_UNVERSIONED) else None

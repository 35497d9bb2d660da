"""Run a certified OpenID Connect provider, npm's `oidc-provider`, on this machine."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from waiting import TIMEOUT_S

CLIENT = {"oidc_client_id": "console", "oidc_client_secret": "secret of the test client"}


class OidcProvider:
    """A provider that logs in the person whom the test names, without a form."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.issuer = self._line()

    def logs_in(self, **claims: Any) -> None:
        """Log in this person next; without claims, refuse."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(claims) + "\n")
        self._process.stdin.flush()
        assert self._line() == "ready"

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        assert line, "the provider ended"
        return line


@contextmanager
def oidc_provider(packages: Path, redirect_uri: str) -> Iterator[OidcProvider]:
    """Run a provider that sends people back to `redirect_uri` only."""
    with (packages / "provider.log").open("w") as log:
        process = subprocess.Popen(
            ["node", "provider.mjs", redirect_uri],
            cwd=packages,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    try:
        yield OidcProvider(process)
    finally:
        process.terminate()
        process.wait(TIMEOUT_S)
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            pipe.close()

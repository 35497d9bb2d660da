"""Run a real Prometheus with the rules of infra/deploy, faster than in production."""

import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
import yaml
from required_tools import require_tool
from waiting import wait_until

from stepstream.embedded.ports import free_block

RULES = Path(__file__).parents[2] / "infra" / "deploy" / "prometheus" / "rules.yml"
INTERVAL = "500ms"


def promtool(*arguments: str | Path) -> None:
    """Run promtool; skip the test without Prometheus.

    Raises:
        AssertionError: promtool found a fault; the message has its output.
    """
    require_tool("Prometheus")
    done = subprocess.run(["promtool", *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


class PrometheusServer:
    """A Prometheus that scrapes targets several times a second; as a context manager, started and stopped."""

    def __init__(self, folder: Path, targets: Mapping[str, str]) -> None:
        """Write its configuration; skip the test without Prometheus.

        Args:
            folder: for configuration, data and log.
            targets: address by the name of each process.
        """
        self._program = require_tool("Prometheus")
        self._folder = folder
        self._port = free_block(1)
        self._rules = yaml.safe_load(RULES.read_text())
        for rule in self.rules:
            rule.pop("for", None)  # promtool tests the durations
        jobs = [{"targets": [address], "labels": {"process": process}} for process, address in targets.items()]
        config = {
            "global": {"scrape_interval": INTERVAL, "scrape_timeout": INTERVAL, "evaluation_interval": INTERVAL},
            "rule_files": ["rules.yml"],
            "scrape_configs": [{"job_name": "stepstream", "static_configs": jobs}],
        }
        for name, content in (("rules", self._rules), ("prometheus", config)):
            (folder / f"{name}.yml").write_text(yaml.safe_dump(content))

    @property
    def rules(self) -> list[dict[str, Any]]:
        """The rules of all groups."""
        return [rule for group in self._rules["groups"] for rule in group["rules"]]

    def get(self, path: str, **parameters: str) -> Any:
        """Return the data of an answer of the API below `/api/v1/`."""
        answer = httpx.get(f"http://127.0.0.1:{self._port}/api/v1/{path}", params=parameters)
        assert answer.status_code == 200, answer.text
        return answer.json()["data"]

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Return the samples of an instant query."""
        samples = self.get("query", query=expression)["result"]
        assert isinstance(samples, list)
        return samples

    def firing(self) -> set[str]:
        """Return the names of the alerts that fire."""
        return {alert["labels"]["alertname"] for alert in self.get("alerts")["alerts"] if alert["state"] == "firing"}

    def wait_for_evaluation(self) -> None:
        """Wait until every rule was evaluated on data that was scraped after this call."""
        begun = datetime.now(UTC)
        # One evaluation may have begun before the scrape that this call waits for.
        wait_until(lambda: all(at > begun + timedelta(seconds=1) for at in self._evaluations()), "evaluation")

    def _evaluations(self) -> list[datetime]:
        return [datetime.fromisoformat(group["lastEvaluation"]) for group in self.get("rules")["groups"]]

    def __enter__(self) -> Self:
        with (self._folder / "prometheus.log").open("w") as log:
            self._process = subprocess.Popen(
                [
                    self._program,
                    f"--config.file={self._folder / 'prometheus.yml'}",
                    f"--storage.tsdb.path={self._folder / 'data'}",
                    f"--web.listen-address=127.0.0.1:{self._port}",
                ],
                stdout=log,
                stderr=log,
            )
        wait_until(self._is_ready, lambda: (self._folder / "prometheus.log").read_text())
        return self

    def _is_ready(self) -> bool:
        assert self._process.poll() is None, (self._folder / "prometheus.log").read_text()
        try:
            return httpx.get(f"http://127.0.0.1:{self._port}/-/ready").status_code == 200
        except httpx.TransportError:
            return False

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()

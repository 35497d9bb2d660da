"""Test the closing line of the demo: it names the console's page of its own curve."""

import re
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest

from stepstream.cli.demo import _curve, _print_summary
from stepstream.config import load
from stepstream.services.console.api.curves import curves
from stepstream.services.console.app import STATIC
from stepstream.services.console.endpoints import Call, Services
from stepstream.services.console.users import LOCAL

FACTS = {
    "success_before": 0.2,
    "success_after": 0.8,
    "seconds_to_target": 90.0,
    "policy_versions": 9,
    "steps_produced": 1,
    "steps_in_clickhouse": 1,
    "lost": 0,
    "duplicated": 0,
    "staleness_max": 1,
    "staleness_bound": 8,
    "peak_rss_mb": 100,
}


class Store:
    """Notes the models that are asked for; knows a newer one."""

    def __init__(self) -> None:
        self.models: set[Any] = set()

    def query(self, sql: str, parameters: dict[str, Any], *, fresh_s: float) -> list[dict[str, Any]]:
        self.models |= {parameters["model"]} if "model" in parameters else set()
        return [{"model": "newer"}] if "AS newest FROM" in sql else []


def test_the_last_line_names_the_page_of_the_runs_own_curve(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = load({"STEPSTREAM_CONFIG": "demo", "STEPSTREAM_CONSOLE_PORT": "9999"})
    _print_summary(FACTS, tmp_path / "report.html", _curve(settings), as_json=False)
    [address] = re.findall(r"http\S+", capsys.readouterr().out.splitlines()[-1])
    parts = urlsplit(address)
    assert (parts.netloc, parts.path) == ("127.0.0.1:9999", "/curves")
    assert 'name: "curves"' in (STATIC / "pages" / "index.js").read_text()
    store: Any = Store()
    request = Call(LOCAL, Services(settings, store, None, None), dict(parse_qsl(parts.query)))  # type: ignore[arg-type]
    assert curves.read is not None
    assert curves.read(request)["model"] == settings.learner.model
    assert store.models == {settings.learner.model}

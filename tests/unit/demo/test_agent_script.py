"""Test how the demo runs an agent's script, with scripts that answer without a model."""

import ast
import sys
from pathlib import Path

import pytest
from waiting import wait_until

from stepstream.config import Settings
from stepstream.demo.agent_script import AgentScript
from stepstream.demo.run_stats import Rate
from stepstream.embedded.errors import StackError

ROOT = Path(__file__).parents[3]
EVALUATES = """
import json, sys
assert "--split=eval" in sys.argv and "--temperature=0" in sys.argv and "--tasks=7" in sys.argv
assert "--url=http://127.0.0.1:8080" in sys.argv
print("a line of the agent's own")
print(json.dumps({"attempts": 7, "succeeded": 3}))
"""


def agent(folder: Path, source: str) -> AgentScript:
    script = folder / "agent.py"
    script.write_text(source)
    (folder / "logs").mkdir()
    settings = Settings()
    return AgentScript(
        settings.model_copy(
            update={
                "paths": settings.paths.model_copy(update={"data": folder}),
                "demo": settings.demo.model_copy(update={"agent": script}),
            }
        )
    )


def test_an_evaluation_reads_the_last_line(tmp_path: Path) -> None:
    assert agent(tmp_path, EVALUATES).evaluate(7) == Rate(3, 7)


def test_a_failed_evaluation_names_its_last_error(tmp_path: Path) -> None:
    with pytest.raises(StackError, match="status 1: RuntimeError: no gateway"):
        agent(tmp_path, "raise RuntimeError('no gateway')").evaluate(7)


def test_a_background_run_stops(tmp_path: Path) -> None:
    script = agent(tmp_path, "import time\nwhile True: time.sleep(0.1)")
    script.start()
    script.check()
    script.stop()
    script.check()


def test_attempts_at_once_are_half_the_workers_batch_or_as_given(tmp_path: Path) -> None:
    script = agent(tmp_path, "import sys, pathlib\npathlib.Path(sys.argv[0] + '.out').write_text(' '.join(sys.argv))")
    output = tmp_path / "agent.py.out"
    for concurrency, expected in ((None, Settings().inference.max_batch // 2), (3, 3)):
        script.start(concurrency)
        wait_until(lambda: output.is_file() and output.read_text(), "the script's output")
        assert f"--concurrency={expected}" in output.read_text().split()
        script.stop()
        output.unlink()


def test_a_background_run_that_ends_is_an_error(tmp_path: Path) -> None:
    script = agent(tmp_path, "raise SystemExit(3)")
    script.start()

    def has_failed() -> bool:
        try:
            script.check()
        except StackError:
            return True
        return False

    wait_until(has_failed, "the end of the script")
    with pytest.raises(StackError, match="status 3"):
        script.check()
    script.stop()


def test_a_missing_script_names_its_setting() -> None:
    settings = Settings()
    demo = settings.demo.model_copy(update={"agent": Path("missing.py")})
    with pytest.raises(StackError, match="STEPSTREAM_DEMO_AGENT"):
        AgentScript(settings.model_copy(update={"demo": demo}))


def test_the_example_is_short_and_needs_only_the_stock_client() -> None:
    source = (ROOT / Settings().demo.agent).read_text("utf-8")
    assert len(source.splitlines()) < 80
    imports = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Import | ast.ImportFrom)]
    modules = {getattr(node, "module", None) or name.name for node in imports for name in node.names}
    assert {module.partition(".")[0] for module in modules} - sys.stdlib_module_names == {"openai"}

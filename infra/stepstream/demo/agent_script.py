"""Run the agent of `stepstream demo-model`: a script of the user's, which knows the gateway's address and no more."""

import json
import subprocess
import sys
from typing import Any

from stepstream.config import Settings
from stepstream.demo.run_stats import Rate
from stepstream.embedded.errors import StackError

_STOP_S = 30.0


class AgentScript:
    """The script `demo.agent`, in the background or until it has attempted a number of tasks."""

    def __init__(self, settings: Settings) -> None:
        """Check that the script exists.

        Raises:
            StackError: it does not.
        """
        script = settings.demo.agent
        if not script.is_file():
            raise StackError(f"no agent script at {script}: run from the repository, or set STEPSTREAM_DEMO_AGENT")
        self._command = [sys.executable, str(script), f"--url={settings.fleet.gateway_url}"]
        self._command += [f"--model={settings.inference.model}"]
        self._batch = settings.inference.max_batch
        self._group_size = settings.learner.group_size
        self._log = settings.paths.data / "logs" / "agent.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, concurrency: int | None = None) -> None:
        """Attempt training tasks in the background without end, `concurrency` at once or half the worker's batch."""
        command = [
            *self._command,
            f"--attempts={self._group_size}",
            f"--concurrency={concurrency or max(1, self._batch // 2)}",
        ]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)

    def check(self) -> None:
        """Do nothing while the background run goes on.

        Raises:
            StackError: it ended: a call failed.
        """
        if self._process is not None and self._process.poll() is not None:
            raise StackError(f"the agent ended with status {self._process.returncode}: see {self._log}")

    def stop(self) -> None:
        """End the background run; attempts under way end by the label job's timeout."""
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._process = None

    def evaluate(self, tasks: int, first: int = 0) -> Rate:
        """Attempt held-out tasks from number `first` on once each, greedily; return the script's count of successes.

        Raises:
            StackError: a call failed.
        """
        command = [*self._command, "--split=eval", "--attempts=1", "--temperature=0"]
        command += [f"--concurrency={self._batch}", f"--first={first}", f"--tasks={tasks}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise StackError(f"the agent ended with status {done.returncode}: {done.stderr.strip().splitlines()[-1]}")
        result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
        return Rate(result["succeeded"], result["attempts"])

"""Records agents' runs with the SDK, as the process of an agent does, as fast as they are acknowledged.

Run it as `python bench/sdk_load.py NAME SECONDS`, with the settings in the environment. After every `FLUSH_RUNS` runs
it flushes, which returns once Kafka has all of them (acks=all), and prints a line of JSON: how many runs those were
from the start and the second it was. The run of number N is trajectory NAME-N.
"""

import json
import sys
import time

from otlp_load import CALLS_OF_RUN

from stepstream import sdk

FLUSH_RUNS = 1_000
SAID = "Where is my order 4711? It was to arrive on Monday, and the tracking page has not changed since. "


def run(trajectory_id: str) -> None:
    """One agent's run: the content of a run of `otlp_load`."""
    answer = {
        "role": "assistant",
        "content": SAID,
        "tool_calls": [
            {"id": "call_1", "type": "function", "function": {"name": "lookup", "arguments": '{"order": 4711}'}}
        ],
    }
    with sdk.trajectory(trajectory_id=trajectory_id, agent="order-agent") as trajectory:
        for call in range(1, CALLS_OF_RUN + 1):
            asked = [
                {"role": "system", "content": "You help customers with their orders."},
                {"role": "user", "content": f"{SAID * 3} ({call})"},
            ]
            with trajectory.step(asked, model="demo", temperature=0.7) as step:
                step.response(answer)


def main(name: str, seconds: float) -> None:
    """Records until the time is over, and three flushes at least."""
    until = time.monotonic() + seconds
    done = 0
    while time.monotonic() < until or done < 3 * FLUSH_RUNS:
        for number in range(done, done + FLUSH_RUNS):
            run(f"{name}-{number}")
        while sdk.flush(30.0):
            pass
        done += FLUSH_RUNS
        print(json.dumps([done, time.monotonic()]), flush=True)  # the same clock in all processes


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))

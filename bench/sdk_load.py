"""Record agents' runs with the SDK at full speed, as an agent's process does.

Run it as `python bench/sdk_load.py NAME SECONDS`, with the settings in the environment. After every `FLUSH_RUNS` runs
it flushes, which returns once Kafka has all steps (acks=all), and prints a line of JSON: the runs since the start and
the time in seconds. Run N is trajectory NAME-N.
"""

import json
import sys
import time

from otlp_load import CALLS_OF_RUN

from stepstream import sdk

FLUSH_RUNS = 1_000
TEXT = "Where is my order 4711? It was to arrive on Monday, and the tracking page has not changed since. "


def run(trajectory_id: str) -> None:
    """Record one agent's run with the content of a run of `otlp_load`."""
    answer = {
        "role": "assistant",
        "content": TEXT,
        "tool_calls": [
            {"id": "call_1", "type": "function", "function": {"name": "lookup", "arguments": '{"order": 4711}'}}
        ],
    }
    with sdk.trajectory(trajectory_id=trajectory_id, agent="order-agent") as trajectory:
        for call in range(1, CALLS_OF_RUN + 1):
            prompt = [
                {"role": "system", "content": "You help customers with their orders."},
                {"role": "user", "content": f"{TEXT * 3} ({call})"},
            ]
            with trajectory.step(prompt, model="demo", temperature=0.7) as step:
                step.response(answer)


def main(name: str, seconds: float) -> None:
    """Record until the time is over, with at least three flushes."""
    end = time.monotonic() + seconds
    done = 0
    while time.monotonic() < end or done < 3 * FLUSH_RUNS:
        for number in range(done, done + FLUSH_RUNS):
            run(f"{name}-{number}")
        while sdk.flush(30.0):
            pass
        done += FLUSH_RUNS
        print(json.dumps([done, time.monotonic()]), flush=True)  # the same clock in all processes


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))

"""Run untrusted code and its judge as two sandboxed programs, connected by their standard input and output.

    judge (tests, expected values) ──stdout──▶ stdin── solution (the agent's code)
                                  ◀──stdin── stdout──

Each has a folder, a process namespace and limits of its own, so the code can neither read what the judge expects nor
change how it judges. It influences the judge by the bytes that it writes alone.
"""

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from stepstream.jobs.verifiers.sandbox.limits import Confinement, Limits, Run
from stepstream.jobs.verifiers.sandbox.run import Channel, run


@dataclass(frozen=True, slots=True)
class Program:
    """Program in a folder of its own."""

    files: Mapping[str, str]
    """Text of each file by its name."""
    argv: Sequence[str]


def run_pair(judge: Program, solution: Program, limits: Limits, confinement: Confinement) -> tuple[Run, Run]:
    """Run both until the judge ends; blocks. Return the runs of judge and solution.

    A solution that still runs when the judge has ended is killed: its run is `stopped`.

    Raises:
        SandboxError: one of them cannot be confined as required, or not be started.
    """
    judge_reads, solution_writes = os.pipe()
    solution_reads, judge_writes = os.pipe()
    stop = os.eventfd(0, os.EFD_CLOEXEC)
    try:
        with ThreadPoolExecutor(1) as pool:
            beside = pool.submit(
                run,
                solution.files,
                solution.argv,
                limits,
                confinement,
                channel=Channel(solution_reads, solution_writes, stop),
            )
            try:
                judged = run(judge.files, judge.argv, limits, confinement, channel=Channel(judge_reads, judge_writes))
            finally:
                os.eventfd_write(stop, 1)
            return judged, beside.result()
    finally:
        os.close(stop)

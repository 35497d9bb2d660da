"""The sandbox against code that wants out: each limit holds, with namespaces and without."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from waiting import wait_until

from stepstream.jobs.verifiers.sandbox import landlock
from stepstream.jobs.verifiers.sandbox import run as sandbox
from stepstream.jobs.verifiers.sandbox.cgroup import process_limit
from stepstream.jobs.verifiers.sandbox.limits import Confinement, Limits, Run
from stepstream.jobs.verifiers.sandbox.seccomp import program

pytestmark = pytest.mark.skipif(not landlock.version(), reason="needs Landlock: run on Linux 5.13 or later")

LIMITS = Limits(wall_s=20.0, cpu_s=10, memory_mb=256, file_mb=4, output_bytes=10_000, processes=8)


@pytest.fixture(params=[True, False], ids=["namespaces", "filter alone"])
def namespaces(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def ran(code: str, namespaces: bool = True, limits: Limits = LIMITS, confinement: Confinement = "strict") -> Run:
    return sandbox.run(
        {"main.py": code}, [sys.executable, "-I", "-S", "main.py"], limits, confinement, namespaces=namespaces
    )


def test_code_runs_in_a_folder_of_its_own_with_an_empty_environment(namespaces: bool) -> None:
    os.environ["SECRET_OF_THE_JOB"] = "x"
    code = """
import os, subprocess, sys, threading
open("here", "w").write("mine")
thread = threading.Thread(target=print, args=("thread",)); thread.start(); thread.join()
print(subprocess.run([sys.executable, "-I", "-S", "-c", "print(7)"], capture_output=True, text=True).stdout.strip())
print(sorted(os.listdir(".")), os.getcwd() == os.environ["HOME"], "SECRET_OF_THE_JOB" in os.environ)
"""
    try:
        done = ran(code, namespaces)
    finally:
        del os.environ["SECRET_OF_THE_JOB"]
    assert (done.ended, done.status) == ("exited", 0), done.output
    assert done.output == "thread\n7\n['here', 'main.py'] True False\n"


@pytest.mark.parametrize(
    ("code", "ended"),
    [
        ("while True: pass", "timeout"),
        ("import time; time.sleep(600)", "timeout"),
        ("import os\nwhile True:\n try: os.fork()\n except OSError: pass", "processes"),
        ("while True: print('x' * 1000)", "output"),
        ("import os\nwhile True: os.write(int(os.environ['STEPSTREAM_REPORT']), b'x' * 1000)", "output"),
        ("n = 0\nwhile True:\n n += 1\n open(str(n), 'wb').write(b'x' * 100_000)", "disk"),
        ("n = 0\nwhile True:\n n += 1\n open(str(n), 'wb').close()", "disk"),
        (
            "import os, time\nfor _ in range(6):\n if os.fork() == 0:\n  x = bytearray(100 << 20); time.sleep(600)\n"
            "time.sleep(600)",
            "memory",
        ),
        ("import os; os.abort()", "killed"),
    ],
    ids=["loop", "sleep", "fork bomb", "output", "report", "bytes", "files", "memory of children", "abort"],
)
def test_a_run_that_exceeds_a_limit_is_stopped(code: str, ended: str, namespaces: bool) -> None:
    wall_s = 1.5 if ended == "timeout" else 30.0
    done = ran(code, namespaces, Limits(wall_s, 20, 256, 4, 10_000, 8, 64))
    assert done.ended == ended, done.output
    assert len(done.output) <= 10_000


def test_processes_are_counted_no_further_than_the_limit() -> None:
    """Reading on would see ever more of them: a fork bomb starves the rest of the machine meanwhile."""
    script = "import os, time\nfor _ in range(3): os.fork()\nprint(end='x', flush=True); time.sleep(600)"
    started = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, start_new_session=True)
    assert started.stdout is not None
    with started, started.stdout:
        try:
            assert started.stdout.read(8) == b"x" * 8
            assert (sandbox._measure_session(started.pid, 100)[0], sandbox._measure_session(started.pid, 3)[0]) == (
                8,
                4,
            )
        finally:
            os.killpg(started.pid, signal.SIGKILL)


def test_a_control_group_bounds_the_processes_of_root() -> None:
    """Between two looks at its processes a fork bomb makes ten thousand: root has no other limit."""
    script = (
        "import os, sys, time\nopen(sys.argv[1], 'w').write('0')\nforked = 0\ntry:\n"
        " while forked < 100:\n  if os.fork() == 0: time.sleep(600)\n  forked += 1\n"
        "except BlockingIOError: pass\nprint(forked, flush=True)"
    )
    with process_limit(8) as group:
        if group is None:
            pytest.skip("this user may create no control group")
        started = subprocess.Popen(
            [sys.executable, "-c", script, str(group)], stdout=subprocess.PIPE, start_new_session=True
        )
        assert started.stdout is not None
        with started, started.stdout:
            try:
                assert started.stdout.readline() == b"7\n"
            finally:
                os.killpg(started.pid, signal.SIGKILL)


def test_processor_time_is_limited() -> None:
    done = ran("while True: pass", limits=Limits(wall_s=60.0, cpu_s=1, memory_mb=256))
    assert (done.ended, done.status) == ("timeout", -signal.SIGXCPU)


TRIED = {
    "bytearray(1 << 30)": "MemoryError",
    "[open('/dev/null') for _ in range(100)]": "OSError 24",
    "open('{outside}/stolen', 'w')": "PermissionError",
    "open('{outside}/secret').read()": "PermissionError",
    "open('/etc/passwd').read()": "PermissionError",
    "open('/proc/1/environ').read()": "PermissionError",
    "os.symlink('{outside}/secret', 'link'), open('link').read()": "PermissionError",
    "os.listdir('{outside}')": "PermissionError",
    "os.setsid()": "PermissionError",
    "os.setpgid(0, 0)": "PermissionError",
    "socket.create_connection(('127.0.0.1', 9))": "PermissionError",
    "socket.socket(socket.AF_UNIX)": "PermissionError",
    "socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)": "PermissionError",
    "checked(libc.unshare(0x10000000))": "PermissionError",
    "checked(libc.ptrace(0, 0, 0, 0))": "PermissionError",
    "checked(libc.syscall(425, 1, 0))": "PermissionError",
    "resource.setrlimit(resource.RLIMIT_AS, (1 << 40, 1 << 40))": "ValueError",
}


def test_forbidden_actions_fail(namespaces: bool, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("known")
    code = """
import ctypes, os, resource, socket
libc = ctypes.CDLL(None, use_errno=True)
def checked(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), "")
for tried in TRIED:
    try:
        eval(tried)
        print("done:", tried)
    except OSError as error:
        print("PermissionError" if type(error) is PermissionError else f"OSError {error.errno}")
    except Exception as error:
        print(type(error).__name__)
""".replace("TRIED", repr([tried.replace("{outside}", str(tmp_path)) for tried in TRIED]))
    done = ran(code, namespaces)
    assert dict(zip(TRIED, done.output.splitlines(), strict=True)) == TRIED
    assert os.listdir(tmp_path) == ["secret"]


def test_a_file_cannot_be_larger_than_allowed() -> None:
    done = ran("open('big', 'wb').write(b'x' * (5 << 20))")
    assert done.ended == "disk" or "File too large" in done.output


def test_processes_outside_cannot_be_signalled_without_namespaces() -> None:
    done = ran(f"import os; os.kill({os.getpid()}, 0)", namespaces=False)
    assert "PermissionError" in done.output


def test_files_outside_keep_their_mode_owner_and_times(namespaces: bool, tmp_path: Path) -> None:
    """Landlock does not look at these calls, and the code runs as the user of whom these files are."""
    (file := tmp_path / "of the job").write_text("kept")
    before = file.stat()
    code = f"""
import os, shutil
for change in (
    lambda of: os.chmod(of, 0), lambda of: os.utime(of, (1, 1)), lambda of: os.chown(of, -1, -1),
    lambda of: os.truncate(of, 0), lambda of: os.setxattr(of, 'user.a', b'x'),
    lambda of: os.chmod(os.path.dirname(of), 0),
):
    try: change({str(file)!r})
    except OSError: pass
shutil.copy('main.py', 'copy.py')
print(open('copy.py').read() == open('main.py').read())
"""
    done = ran(code, namespaces)
    assert done.output == "True\n", done.output
    after = file.stat()
    names = ("st_mode", "st_uid", "st_size", "st_mtime_ns", "st_ctime_ns")
    assert [getattr(after, name) for name in names] == [getattr(before, name) for name in names]


def test_descriptors_cannot_signal_other_processes(namespaces: bool) -> None:
    with subprocess.Popen(["/bin/sleep", "600"]) as victim:
        try:
            code = f"""
import fcntl, os
read, write = os.pipe()
try:
    fcntl.fcntl(read, fcntl.F_SETOWN, {victim.pid})
    fcntl.fcntl(read, 10, 9)  # F_SETSIG, SIGKILL
    fcntl.fcntl(read, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
    os.write(write, b"x")
except OSError as error:
    print(type(error).__name__)
"""
            assert ran(code, namespaces).output == "PermissionError\n"
            assert victim.poll() is None
        finally:
            victim.kill()


def test_processes_outside_cannot_be_seen_with_namespaces() -> None:
    done = ran(f"import os; os.kill({os.getpid()}, 0)", namespaces=True)
    if "PermissionError" in done.output:
        pytest.skip("needs user namespaces: allow them on this machine")
    assert "ProcessLookupError" in done.output


def test_processes_that_remain_are_killed(namespaces: bool) -> None:
    seconds = f"{time.time_ns() % 10**9 + 10**6}"
    code = f"""
import os, time
if os.fork() == 0:
    os.close(1); os.close(2)
    os.execv("/bin/sleep", ["sleep", "{seconds}"])
time.sleep(0.1)
"""
    assert ran(code, namespaces).status == 0
    wait_until(lambda: not any(seconds in line for line in command_lines()))


def command_lines() -> list[str]:
    found = []
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(process.read_bytes().decode(errors="replace"))
        except OSError:
            continue
    return found


def test_deeply_nested_folders_are_removed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    code = "import os\nfor n in range(1500): os.mkdir('d'); os.chdir('d')\n"
    done = ran(code)
    assert done.ended in ("exited", "disk"), done.output
    assert ran("import os; os.makedirs('a/b'); os.chmod('a', 0)").status == 0
    assert os.listdir(tmp_path) == []


def test_no_code_runs_without_confinement(monkeypatch: pytest.MonkeyPatch) -> None:
    """A processor that the filter does not know, and no namespaces: no network isolation can be had."""
    order = "import sys, runpy; from stepstream.jobs.verifiers.sandbox import seccomp, landlock; {0}; "
    order += "runpy.run_module('stepstream.jobs.verifiers.sandbox.launcher', run_name='__main__')"
    real = subprocess.Popen

    def crippled(config: str) -> None:
        def start(command: list[str], **fields: Any) -> Any:
            changed = [sys.executable, "-I", "-c", order.format(config), command[-1]]
            return real(changed, **fields)

        monkeypatch.setattr(subprocess, "Popen", start)

    crippled("seccomp._ARCHITECTURES.clear()")
    with pytest.raises(sandbox.SandboxError, match=r"network cannot be blocked.*lower verify\.sandbox"):
        ran("print('ran')", namespaces=False)
    assert ran("print('ran')", namespaces=False, confinement="none").output == "ran\n"
    crippled("landlock.version = lambda: 0")
    with pytest.raises(sandbox.SandboxError, match="files cannot be confined"):
        ran("print('ran')", namespaces=False)
    assert ran("print('ran')", namespaces=False, confinement="network").output == "ran\n"


def test_a_missing_command_is_a_sandbox_error() -> None:
    with pytest.raises(sandbox.SandboxError, match="cannot be started"):
        sandbox.run({}, ["/no/such/program"], LIMITS, "strict")


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_filter_decides_each_call(machine: str) -> None:
    kill, allow, deny, nosys = 0x80000000, 0x7FFF0000, 0x00050001, 0x00050026
    arch = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
    numbers = {"x86_64": (41, 56, 435, 234, 62), "aarch64": (198, 220, 435, 131, 129)}[machine]
    socket, clone, clone3, tgkill, kill_call = numbers
    filtered = program(machine, 77)
    assert decided(filtered, arch[machine], 0) == allow
    assert decided(filtered, 0x40000003, 0) == kill
    assert decided(filtered, arch[machine], socket) == deny
    assert decided(filtered, arch[machine], clone3) == nosys
    assert decided(filtered, arch[machine], clone, 0x11) == allow
    assert decided(filtered, arch[machine], clone, 0x40000000) == deny
    assert decided(filtered, arch[machine], tgkill, 77) == allow
    assert decided(filtered, arch[machine], tgkill, 78) == deny
    assert decided(filtered, arch[machine], kill_call) == deny
    assert decided(program(machine, None), arch[machine], kill_call) == allow
    fcntl, fchmod = {"x86_64": (72, 91), "aarch64": (25, 52)}[machine]
    assert [decided(filtered, arch[machine], fcntl, 3, command) for command in (8, 15, 2)] == [deny, deny, allow]
    assert decided(filtered, arch[machine], fchmod) == 0x00050000  # does nothing and returns no error
    if machine == "x86_64":
        assert decided(filtered, arch[machine], 0x40000000 + socket) == kill


def decided(code: list[tuple[int, int, int, int]], architecture: int, number: int, *arguments: int) -> int:
    """Run the filter on a call as the kernel would, and return its decision."""
    data = {0: number, 4: architecture} | {16 + 8 * place: value for place, value in enumerate(arguments or (0,))}
    place = accumulator = 0
    while True:
        kind, yes, no, operand = code[place]
        place += 1
        match kind:
            case 0x20:
                accumulator = data[operand]
            case 0x06:
                return operand
            case 0x15:
                place += yes if accumulator == operand else no
            case 0x35:
                place += yes if accumulator >= operand else no
            case 0x45:
                place += yes if accumulator & operand else no

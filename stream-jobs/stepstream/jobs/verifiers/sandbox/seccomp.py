"""Filter system calls (seccomp), so that a process has no access to a network or to other processes.

Needs no privilege and works inside containers. The process installs it itself before it runs the code, and all its
children inherit it.
"""

import ctypes
import errno
import os
import platform
import struct

_DENIED = {
    # name: (x86_64, aarch64), from the kernel's tables
    "socket": (41, 198),
    "io_uring_setup": (425, 425),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "pidfd_open": (434, 434),
    "pidfd_getfd": (438, 438),
    "pidfd_send_signal": (424, 424),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "setsid": (112, 157),
    "setpgid": (109, 154),
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "shmget": (29, 194),
    "msgget": (68, 186),
    "semget": (64, 190),
    "memfd_create": (319, 279),
    "mq_open": (240, 180),
    "syslog": (103, 116),
    "truncate": (76, 45),  # older versions of Landlock leave it open
    "setpriority": (141, 140),
    "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119),
    "sched_setaffinity": (203, 122),
    "sched_setattr": (314, 274),
    "ioprio_set": (251, 30),
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "setxattrat": (463, 463),
    "removexattr": (197, 14),
    "lremovexattr": (198, 15),
    "fremovexattr": (199, 16),
    "removexattrat": (466, 466),
    "file_setattr": (469, 469),
}
_IGNORED = {
    "chmod": (90, None),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "chown": (92, None),
    "fchown": (93, 55),
    "lchown": (94, None),
    "fchownat": (260, 54),
    "utime": (132, None),
    "utimes": (235, None),
    "futimesat": (261, None),
    "utimensat": (280, 88),
}
"""Calls that do nothing and return success. They would reach any file of this user, because Landlock does not restrict
them, and ordinary code makes them when it copies files.
"""
_SIGNALS = {"kill": (62, 129), "tkill": (200, 130)}
_TGKILL, _CLONE, _CLONE3, _PRLIMIT = (234, 131), (56, 220), (435, 435), (302, 261)
_FCNTL, _SET_OWNER, _SET_OWNER_EX = (72, 25), 8, 15
_IOCTL, _SOCKET_OWNERS = (16, 29), (0x8901, 0x8902)
"""Ioctls that set the process to which a socket sends signals: another way to end a process."""
_ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
_X32 = 0x40000000
_NAMESPACES = 0x7E020000
"""CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET."""

_LOAD, _JEQ, _JGE, _JSET, _RET = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_OF_NR, _OF_ARCH = 0, 4
_SET_NO_NEW_PRIVS, _SET_SECCOMP, _MODE_FILTER = 38, 22, 2

Instruction = tuple[int, int, int, int]
"""Code, jump if true, jump if false, operand."""


def available() -> bool:
    """Return True if the system calls of this machine's processor are known; `install` finds out about the kernel."""
    return platform.machine() in _ARCHITECTURES


def install(*, own_processes: bool) -> None:
    """Filter the system calls of this process permanently.

    Args:
        own_processes: True if it sees only its own processes, so that it may send signals.

    Raises:
        OSError: the kernel does not support it, or denies it to this process.
    """
    if not available():
        raise OSError(errno.ENOSYS, f"no system call filter for {platform.machine()}")
    code = program(platform.machine(), None if own_processes else os.getpid())
    packed = b"".join(struct.pack("HBBI", *instruction) for instruction in code)
    buffer = ctypes.create_string_buffer(packed, len(packed))
    filters = struct.pack("HxxxxxxP", len(code), ctypes.addressof(buffer))
    libc = ctypes.CDLL(None, use_errno=True)
    for call in ((_SET_NO_NEW_PRIVS, 1, 0, 0, 0), (_SET_SECCOMP, _MODE_FILTER, ctypes.c_char_p(filters), 0, 0)):
        if libc.prctl(*call) != 0:
            raise OSError(ctypes.get_errno(), "the kernel rejects a system call filter")


def program(machine: str, only_pid: int | None) -> list[Instruction]:
    """Return the filter for a processor; `only_pid`: the one process that may be signalled, None: any."""
    column, architecture = _ARCHITECTURES[machine]
    deny, allow, kill = _ERRNO | errno.EPERM, _ALLOW, _KILL
    code: list[Instruction] = [
        (_LOAD, 0, 0, _OF_ARCH),
        (_JEQ, 1, 0, architecture),
        (_RET, 0, 0, kill),
        (_LOAD, 0, 0, _OF_NR),
    ]
    if machine == "x86_64":
        code += [(_JGE, 0, 1, _X32), (_RET, 0, 0, kill)]
    denied = {**_DENIED, **({} if only_pid is None else _SIGNALS)}
    answers = [(numbers, deny) for numbers in denied.values()] + [(each, _ERRNO) for each in _IGNORED.values()]
    for numbers, answer in answers:
        if (number := numbers[column]) is not None:
            code += [(_JEQ, 0, 1, number), (_RET, 0, 0, answer)]
    # Allow threads and children, in existing namespaces. glibc falls back from clone3 to clone, whose flags a filter
    # can check.
    code += [(_JEQ, 0, 1, _CLONE3[column]), (_RET, 0, 0, _ERRNO | errno.ENOSYS)]
    code += _if_argument(_CLONE[column], 0, [(_JSET, _NAMESPACES)], deny, allow)
    code += _if_argument(_FCNTL[column], 1, [(_JEQ, _SET_OWNER), (_JEQ, _SET_OWNER_EX)], deny, allow)
    code += _if_argument(_IOCTL[column], 1, [(_JEQ, owner) for owner in _SOCKET_OWNERS], deny, allow)
    # Limits: only of this process, which is 0.
    code += _if_argument(_PRLIMIT[column], 0, [(_JEQ, 0)], allow, deny)
    if only_pid is not None:
        code += _if_argument(_TGKILL[column], 0, [(_JEQ, only_pid)], allow, deny)
    return [*code, (_RET, 0, 0, allow)]


def _if_argument(number: int, argument: int, tests: list[tuple[int, int]], yes: int, no: int) -> list[Instruction]:
    """Return instructions for one call: `yes` if the low half of an argument passes one of the tests, else `no`."""
    checks = [(kind, len(tests) - place, 0, operand) for place, (kind, operand) in enumerate(tests)]
    return [
        (_JEQ, 0, len(tests) + 3, number),
        (_LOAD, 0, 0, 16 + 8 * argument),
        *checks,
        (_RET, 0, 0, no),
        (_RET, 0, 0, yes),
    ]

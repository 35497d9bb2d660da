"""Confine a process to some folders (Landlock): it reads what it needs to run, and writes only in its own folder.

Needs no privilege; Linux 5.13 or later. The process installs it itself, and all its children inherit it.
"""

import ctypes
import errno
import os
import struct
from collections.abc import Iterable
from pathlib import Path

_CREATE, _ADD, _RESTRICT = 444, 445, 446
_VERSION_FLAG, _PATH_BENEATH = 1, 1
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
_BY_VERSION = (0, (1 << 13) - 1, (1 << 14) - 1, (1 << 15) - 1, (1 << 15) - 1, (1 << 16) - 1)
"""File rights that each version of the interface knows; later versions add none."""
_FILE_RIGHTS = _EXECUTE | _WRITE_FILE | _READ_FILE | (1 << 14) | (1 << 15)
_DEVICE_CONTROL = 1 << 15
_SET_NO_NEW_PRIVS = 38


def version() -> int:
    """Return the version of the kernel's interface; 0: unsupported."""
    abi: int = ctypes.CDLL(None, use_errno=True).syscall(_CREATE, None, 0, _VERSION_FLAG)
    return max(0, abi)


def install(readable: Iterable[Path], writable: Iterable[Path]) -> None:
    """Confine this process permanently; paths that do not exist are ignored.

    Raises:
        OSError: the kernel does not support it, or denies it to this process.
    """
    abi = version()
    if not abi:
        raise OSError(errno.ENOSYS, "the kernel cannot confine a process to folders (Landlock)")
    handled = _BY_VERSION[min(abi, len(_BY_VERSION) - 1)]
    libc = ctypes.CDLL(None, use_errno=True)
    attributes = struct.pack("Q", handled)
    ruleset = _checked(libc.syscall(_CREATE, ctypes.c_char_p(attributes), len(attributes), 0))
    try:
        for path in readable:
            _allow(libc, ruleset, path, (_EXECUTE | _READ_FILE | _READ_DIR) & handled)
        for path in writable:
            _allow(libc, ruleset, path, handled & ~_DEVICE_CONTROL)
        _checked(libc.prctl(_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
        _checked(libc.syscall(_RESTRICT, ruleset, 0))
    finally:
        os.close(ruleset)


def _allow(libc: ctypes.CDLL, ruleset: int, path: Path, rights: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if not path.is_dir():
            rights &= _FILE_RIGHTS
        rule = struct.pack("=Qi", rights, descriptor)
        _checked(libc.syscall(_ADD, ruleset, _PATH_BENEATH, ctypes.c_char_p(rule), 0))
    finally:
        os.close(descriptor)


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"Landlock: {os.strerror(number)}")
    return result

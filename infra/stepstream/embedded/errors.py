"""The errors of the embedded stack."""


class StackError(Exception):
    """A part that cannot be installed, started or kept running; the message says what to do about it."""


class UnknownProcess(StackError):
    """A name that no process of the stack has."""

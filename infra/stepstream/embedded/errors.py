"""Define the errors of the embedded stack."""


class StackError(Exception):
    """A part cannot be installed, started or kept running; the message names the remedy."""


class UnknownProcess(StackError):
    """No process of the stack has this name; the message lists the names."""

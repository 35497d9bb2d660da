"""Import the agent's code, and answer the calls of its tests, which another process runs.

It is copied into the solution's sandbox; its argument is the name of the code's module. A request is a tuple:
`("get", name)`, `("new", class, args, kwargs)` or `("call", object, name, args, kwargs)`, where object 0 is the module.
The answer is `("value", data)`, `("callable",)`, `("object", number)`, `("raised", names of the built-in bases, text)`
or `("unusable", reason)`.
"""

import builtins
import importlib
import os
import sys
from typing import Any

sys.path.insert(0, os.getcwd())

import plain_data  # type: ignore[import-not-found]


def main() -> None:
    """Answer requests until the input ends."""
    requests, answers = os.fdopen(os.dup(0), "rb"), os.dup(1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # the code can read no request,
    os.dup2(2, 1)  # and what it prints is output, not an answer
    objects: list[Any] = []
    while line := requests.readline():
        answer = _answer(plain_data.decode(line), objects)
        try:
            encoded = plain_data.encode(answer)
        except plain_data.NotPlainData as error:
            encoded = plain_data.encode(("unusable", f"it returned {error}"))
        while encoded:
            encoded = encoded[os.write(answers, encoded) :]


def _answer(request: Any, objects: list[Any]) -> tuple[Any, ...]:
    kind, *details = request
    try:
        if not objects:
            objects.append(importlib.import_module(sys.argv[1]))
        if kind == "get":
            value = getattr(objects[0], details[0])
            return ("callable",) if callable(value) else ("value", value)
        if kind == "new":
            objects.append(getattr(objects[0], details[0])(*details[1], **details[2]))
            return ("object", len(objects) - 1)
        number, name, args, kwargs = details
        value = getattr(objects[number], name)
        return ("value", value(*args, **kwargs))
    except Exception as error:
        bases = [base.__name__ for base in type(error).__mro__ if getattr(builtins, base.__name__, None) is base]
        return ("raised", bases, str(error)[:10_000])


if __name__ == "__main__":
    main()

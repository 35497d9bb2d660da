"""Calculate untrusted expressions without `eval`: integers, `+ - *`, unary minus and parentheses.

Grammar: sum = product {("+" | "-") product}; product = factor {"*" factor}; factor = ["-"] (digits | "(" sum ")").
"""

import re

MAX_LENGTH = 64
_TOKEN = re.compile(r"[0-9]+|[-+*()]")


class ArithmeticSyntaxError(ValueError):
    """The text is not an expression of the grammar, or is too long."""


def calculate(text: str) -> int:
    """Return the exact value of `text`.

    Raises:
        ArithmeticSyntaxError: `text` is no expression, or longer than `MAX_LENGTH` characters.
    """
    if len(text) > MAX_LENGTH:
        raise ArithmeticSyntaxError(f"longer than {MAX_LENGTH} characters")
    tokens = _TOKEN.findall(text)
    if "".join(tokens) != text:
        raise ArithmeticSyntaxError("only digits, + - * and parentheses are understood")
    tokens.reverse()
    value = _sum(tokens)
    if tokens:
        raise ArithmeticSyntaxError(f"unexpected '{tokens[-1]}'")
    return value


def _sum(rest: list[str]) -> int:
    value = _product(rest)
    while rest and rest[-1] in "+-":
        value = value + _product(rest) if rest.pop() == "+" else value - _product(rest)
    return value


def _product(rest: list[str]) -> int:
    value = _factor(rest)
    while rest and rest[-1] == "*":
        rest.pop()
        value *= _factor(rest)
    return value


def _factor(rest: list[str]) -> int:
    if not rest:
        raise ArithmeticSyntaxError("ends too early")
    token = rest.pop()
    if token == "-":
        return -_factor(rest)
    if token == "(":
        value = _sum(rest)
        if not rest or rest.pop() != ")":
            raise ArithmeticSyntaxError("a parenthesis is not closed")
        return value
    if not token.isdigit():
        raise ArithmeticSyntaxError(f"unexpected '{token}'")
    return int(token)

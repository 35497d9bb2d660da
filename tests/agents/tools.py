"""Provide the agents' tools as plain functions, which each framework wraps."""


def lookup(order: int) -> str:
    """Tells the state of an order."""
    return f"Order {order} is late."


def refund(order: int) -> str:
    """Refunds an order."""
    return f"Order {order} is refunded."

"""What the agents work with: plain functions, which each framework makes tools of."""


def lookup(order: int) -> str:
    """Tells the state of an order."""
    return f"Order {order} is late."


def refund(order: int) -> str:
    """Refunds an order."""
    return f"Order {order} is refunded."

"""Order the labels of one trajectory: the single rule by which every reader chooses one. Pure."""


def label_precedence(revision: int, event_id: str) -> tuple[int, str]:
    """Return a sort key; the label with the greatest one counts.

    A higher revision wins. Two labels with one revision are possible where a worker was lost between publishing and
    commit; the greater `event_id` wins then. So the choice does not depend on the order of reading.
    """
    return revision, event_id

"""Which training sequences share a forward pass where they have to be padded."""

from collections.abc import Sequence


def microbatches(lengths: Sequence[int], most_tokens: int) -> list[list[int]]:
    """Indices of sequences of like length, together at most `most_tokens` with padding (or one alone).

    The same lengths give the same split, so that sums are added in the same order when a version is rebuilt.
    """
    batches: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda i: (lengths[i], i)):
        # Sorted: the newcomer is the longest of its batch.
        if batches and (len(batches[-1]) + 1) * lengths[index] <= most_tokens:
            batches[-1].append(index)
        else:
            batches.append([index])
    return batches

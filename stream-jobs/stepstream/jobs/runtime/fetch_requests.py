"""Choose when aiokafka's fetcher asks the brokers for records, and for how long such a request may wait.

aiokafka asks again as soon as its records are taken. It then gets those that came until then, often one. All that come
while a batch is processed wait for the next request, and then for the batch of the request before.
"""

from typing import Any

PARTIAL_WAIT_MS = 200
"""Longest wait at the broker of a request for a part of the partitions."""


class FetchRequests:
    """The requests of one fetcher. Use from the fetcher's event loop."""

    def __init__(self, fetcher: Any) -> None:
        """Take charge of the requests of `fetcher`.

        A node gets one request at a time. A request leaves out partitions that are paused, or whose records have waited
        here for over 0.1 s. If the others are idle, as a topic of feedback, it would wait for `fetch_max_wait_ms`, and
        no record of the partitions that it left out would come until then. So its wait is limited to `PARTIAL_WAIT_MS`.
        """
        self._fetcher = fetcher
        self._held = False
        self._find_actions = fetcher._get_actions_per_node
        fetcher._get_actions_per_node = self._get_actions_per_node

    def hold(self) -> None:
        """Send no further request until `release`; resets of positions go on."""
        self._held = True

    def release(self) -> None:
        """Send requests again, one at once."""
        if self._held:
            self._held = False
            self._fetcher._notify(self._fetcher._wait_consume_future)

    def _get_actions_per_node(self, assignment: Any) -> Any:
        requests, *others = self._find_actions(assignment)
        if self._held:
            requests = []
        for node, request in requests:
            requested = sum(len(partitions) for _, partitions in request.topics)
            if requested < sum(self._fetcher._select_read_replica(tp) == node for tp in assignment.tps):
                request._max_wait_ms = min(request._max_wait_ms, PARTIAL_WAIT_MS)
        return requests, *others

"""Test which erasures the page People shows as in progress."""

from typing import Any

from stepstream.services.console.api.people import MOST_ERASURES, people
from stepstream.services.console.endpoints import Call, Services
from stepstream.services.console.users import User

SUBJECTS = [f"{n:040x}" for n in range(2 * MOST_ERASURES)]


class Store:
    """Has requests, one of each subject in turn, and proofs of all but the first, the last proof first."""

    def query(self, sql: str, parameters: dict[str, Any], *, fresh_s: float) -> list[dict[str, Any]]:
        del fresh_s
        if "FROM erasures " in sql:
            requests = [{"tenant": "t", "subject": one, "requested_at": n} for n, one in enumerate(SUBJECTS, 1)]
            return requests[:-MOST_ERASURES:-1] + requests[:1]
        if "FROM erasure_proofs " in sql:
            proofs = [{"tenant": "t", "subject": one, "finished_at": 10_000 - n} for n, one in enumerate(SUBJECTS)][1:]
            if "subjects" in parameters:
                return [proof for proof in proofs if proof["subject"] in parameters["subjects"]]
            return proofs[:MOST_ERASURES]
        return []


def test_an_erasure_is_finished_though_its_proof_is_not_among_the_newest() -> None:
    services: Any = Services(None, Store(), None, None)  # type: ignore[arg-type]
    assert people.read is not None
    answer: Any = people.read(Call(User("ada", "viewer", ""), services, {}))
    assert [one["subject"] for one in answer["erasures"] if one["finished_at"] is None] == SUBJECTS[:1]
    assert len(answer["erasures"]) == 1 + MOST_ERASURES

"""What makes a record safe to learn from: validation, consent, the tenant's policy, redaction.

`governing.py` makes the governed record; `ruling.py` and `standing.py` say what tenants and persons have decided;
`replaying.py` governs history anew; `inspecting.py` looks for names in a sample.
"""

NAME = "govern"


VERSION = "1"


JOB = f"{NAME}@{VERSION}"

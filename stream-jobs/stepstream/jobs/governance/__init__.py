"""Govern records: validate them, apply consent and the tenant's policy, redact them, and record what was done.

`fold.py` handles one partition of the `govern` job; `govern_step.py` builds the governed record; `active_policy.py` and
`trajectory_policy.py` look up the decisions of tenants and persons; `replay.py` governs history again;
`inspect_fold.py` searches a sample for names.
"""

NAME = "govern"
VERSION = "1"
JOB = f"{NAME}@{VERSION}"

"""The protocols that agents call models by, each in the log's words: pure, no I/O.

`base.py` says what a protocol must tell; `chat.py`, `responses.py` and `anthropic.py` are one each.
"""

"""Read and translate the protocols of model calls: Chat Completions, Responses, Anthropic's Messages. Pure, no I/O.

`base.py` defines their common interface.
"""

"""Decide who may use the console, and what each person may read and do.

`gate` admits each request.
"""

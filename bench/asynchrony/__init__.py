"""Asynchronous against synchronous: the loop on a virtual clock, and on the real stack."""

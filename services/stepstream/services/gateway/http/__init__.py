"""Speak HTTP/1.1: a server for callers and a client for upstreams, without the cost of a framework."""

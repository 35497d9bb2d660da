"""Speak HTTP: the server under the application and the client of the upstreams."""

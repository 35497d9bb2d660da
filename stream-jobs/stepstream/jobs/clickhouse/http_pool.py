"""Provide the connections of ClickHouse's client: they follow no redirect, which would carry rows to another host."""

import os
from functools import cache
from typing import Any

from clickhouse_connect.driver.httputil import check_env_proxy, get_pool_manager_options
from urllib3 import BaseHTTPResponse, PoolManager, ProxyManager

_CONNECTIONS = 32
"""Connections to one server that are kept for the next request."""


class _Direct(PoolManager):
    """Returns a redirect as the answer, which the client raises as an error."""

    def urlopen(  # type: ignore[override]  # the base class has it too
        self, method: str, url: str, redirect: bool = True, **options: Any
    ) -> BaseHTTPResponse:
        return super().urlopen(method, url, redirect=False, **options)


class _Proxied(ProxyManager):
    """The same, through a proxy."""

    def urlopen(  # type: ignore[override]  # the base class has it too
        self, method: str, url: str, redirect: bool = True, **options: Any
    ) -> BaseHTTPResponse:
        return super().urlopen(method, url, redirect=False, **options)


def pool_of(scheme: str, host: str, port: int, *, ca: str = "", certificate: str = "", key: str = "") -> PoolManager:
    """Return the pool of connections to a server, one for all clients of this process. Does not connect.

    It takes the proxy of `HTTP_PROXY` or `HTTPS_PROXY`, unless `NO_PROXY` names the host.

    Args:
        scheme: `http` or `https`.
        host: name or address of the server.
        port: its port.
        ca: file of the authorities that may sign its certificate; empty: those of certifi.
        certificate: file of the client's certificate; empty: none.
        key: file of its key; empty: it is in the file of the certificate.
    """
    proxy = check_env_proxy(scheme, host, port) or ""
    if proxy and not proxy.startswith("http"):
        proxy = f"{scheme}://{proxy}"
    # A forked process must not use its parent's connections.
    return _pool(proxy, ca, certificate, key, os.getpid())


@cache
def _pool(proxy: str, ca: str, certificate: str, key: str, _process: int) -> PoolManager:
    options = get_pool_manager_options(
        ca_cert=ca or None, client_cert=certificate or None, client_cert_key=key or None, maxsize=_CONNECTIONS
    )
    return _Proxied(proxy, **options) if proxy else _Direct(**options)

"""Build the TLS context of a client from files."""

import ssl

from stepstream.config import SettingsError


def client_context(
    setting: str, ca: str = "", certificate: str = "", key: str = "", password: str = ""
) -> ssl.SSLContext:
    """Return a context that checks the server's certificate and name.

    Args:
        setting: section and begin of the settings' names, for errors, as `kafka.ssl_`.
        ca: file of the certificate authority; empty: the system's.
        certificate: file of the client's certificate; empty: none.
        key: file of its key; empty: the certificate's file has it.
        password: of the key.

    Raises:
        SettingsError: a file cannot be read.
    """
    try:
        context = ssl.create_default_context(cafile=ca or None)
    except OSError as error:
        raise SettingsError(f"{setting}ca_location {ca} cannot be read: {error}") from None
    if not certificate:
        return context
    try:
        context.load_cert_chain(certificate, key or None, password)
    except OSError as error:
        raise SettingsError(
            f"{setting}certificate_location {certificate}, key {key or 'in it'}: cannot be read: {error}"
        ) from None
    return context

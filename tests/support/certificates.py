"""Make a certificate authority and certificates as PEM files."""

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_LIFE = datetime.timedelta(days=1)


class Authority:
    """Issues certificates for 127.0.0.1, ::1 and localhost into a folder."""

    def __init__(self, folder: Path, name: str = "test") -> None:
        """Make the key and the authority's own certificate."""
        self._folder, self._name, self._key = folder, _named(name), ec.generate_private_key(ec.SECP256R1())
        folder.mkdir(parents=True, exist_ok=True)
        self._certificate = (
            _builder(self._name, self._name, self._key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.file = folder / f"{name}-ca.pem"
        self.file.write_bytes(_pem(self._certificate))

    def issue(self, name: str, password: str = "") -> Path:
        """Return a file with the key (PKCS 8) and the certificate of `CN=name`."""
        key = ec.generate_private_key(ec.SECP256R1())
        addresses = [x509.IPAddress(ipaddress.ip_address(one)) for one in ("127.0.0.1", "::1")]
        certificate = (
            _builder(_named(name), self._name, key)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost"), *addresses]), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        encryption: serialization.KeySerializationEncryption = serialization.NoEncryption()
        if password:
            encryption = serialization.BestAvailableEncryption(password.encode())
        private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)
        file = self._folder / f"{name}.pem"
        file.write_bytes(private + _pem(certificate))
        return file


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _LIFE)
        .not_valid_after(now + _LIFE)
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)

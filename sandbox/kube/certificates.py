"""A certificate authority of the sandbox's own, because kubectl sends no token over plain HTTP."""

from __future__ import annotations

import ipaddress
import ssl
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from sandbox.private import write_private

_LIFE = timedelta(days=365)


@dataclass(frozen=True)
class Certificates:
    """The files of an authority and of the one server it vouches for."""

    directory: Path

    @property
    def ca_file(self) -> Path:
        return self.directory / "ca.crt"

    @property
    def certificate(self) -> Path:
        return self.directory / "server.crt"

    @property
    def key(self) -> Path:
        return self.directory / "server.key"

    def server_context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate, self.key)
        return context


def ensure_certificates(directory: Path, hosts: tuple[str, ...] = ("127.0.0.1", "::1", "localhost")) -> Certificates:
    """The certificates in a directory, made there unless they are there already and good for another day.

    They outlive a restart, so that kubeconfig files handed out before keep working.
    """
    made = Certificates(directory)
    if not _usable(made, hosts):
        directory.mkdir(parents=True, exist_ok=True)
        _make(made, hosts)
    return made


def _usable(made: Certificates, hosts: tuple[str, ...]) -> bool:
    try:
        certificate = x509.load_pem_x509_certificate(made.certificate.read_bytes())
        authority = x509.load_pem_x509_certificate(made.ca_file.read_bytes())
        certificate.verify_directly_issued_by(authority)
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        fresh = certificate.not_valid_after_utc > datetime.now(timezone.utc) + timedelta(days=1)
        return fresh and made.key.exists() and all(_alternative(host) in names for host in hosts)
    except (OSError, ValueError, TypeError, InvalidSignature, x509.ExtensionNotFound):
        return False


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _make(made: Certificates, hosts: tuple[str, ...]) -> None:
    ca_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    issuer = _name("Sandbox Kubernetes double CA")
    ca_id = x509.SubjectKeyIdentifier.from_public_key(ca_key.public_key())
    authority = (
        _builder(issuer, issuer, ca_key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(ca_id, critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    server = (
        _builder(_name("Sandbox Kubernetes double"), issuer, key.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([_alternative(host) for host in hosts]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(ca_id), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    # The key of the authority is dropped: nothing else is ever to be signed with it.
    made.ca_file.write_bytes(authority.public_bytes(Encoding.PEM))
    made.certificate.write_bytes(server.public_bytes(Encoding.PEM))
    write_private(made.key, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.now(timezone.utc)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + _LIFE)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )

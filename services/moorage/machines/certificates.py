"""The CA and the certificate of the hooks, in one Secret, and their rotation without a refused request.

A new pair is first announced: its CA stands beside the old one in the caBundle. When every API server has read that, all processes serve
the new certificate; the old CA leaves the bundle when none serves the old one any more.
"""

from __future__ import annotations

import ipaddress
import os
import ssl
import tempfile
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

VARIABLE = "MOORAGE_CERTIFICATE_DAYS"
DAYS = 90.0
#: Seconds between the announcement of a CA and the use of its certificate, and until the CA before is withdrawn; less for
#: certificates that live for minutes.
ANNOUNCED, WITHDRAWN = 20.0, 60.0
_SKEW = timedelta(hours=1)
_NAME = "moorage-machines"


class Pair(NamedTuple):
    """A CA's certificate, and a certificate of it with its key, in PEM."""

    ca: bytes
    certificate: bytes
    key: bytes


class Keys(NamedTuple):
    """The content of the Secret. `following` is announced, `previous` the CA before, each `since` then in seconds since the epoch."""

    current: Pair
    following: Pair | None = None
    previous_ca: bytes = b""
    since: float = 0.0

    @property
    def bundle(self) -> bytes:
        """Returns the CAs that hooks are to trust."""
        following = self.following.ca if self.following is not None else b""
        return self.current.ca + following + self.previous_ca


def days() -> float:
    """Returns how long certificates are valid."""
    try:
        found = float(os.environ.get(VARIABLE, "") or DAYS)
    except ValueError:
        raise SystemExit(f"{VARIABLE} is not a number of days") from None
    if found <= 0:
        raise SystemExit(f"{VARIABLE} must be more than 0")
    return found


def issue(names: Sequence[str], now: float, lifetime: float) -> Pair:
    """Makes a CA and a certificate for names and addresses, valid for `lifetime` seconds. The key of the CA is not kept."""
    begin = datetime.fromtimestamp(now, UTC)
    end = begin + timedelta(seconds=lifetime)
    ca_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    # The number tells the CAs of a bundle apart.
    ca_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"{_NAME} CA {int(now)}")])
    ca = (
        x509.CertificateBuilder()
        .subject_name(ca_name)
        .issuer_name(ca_name)
        .public_key(ca_key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin - _SKEW)
        .not_valid_after(end)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, _NAME)]))
        .issuer_name(ca_name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin - _SKEW)
        .not_valid_after(end)
        .add_extension(x509.SubjectAlternativeName([_alternative(name) for name in names]), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return Pair(ca.public_bytes(pem), certificate.public_bytes(pem), private)


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def serves(pair: Pair, names: Sequence[str]) -> bool:
    """Returns whether a certificate is for all of these names."""
    certificate = x509.load_pem_x509_certificate(pair.certificate)
    found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return set(map(_alternative, names)) <= set(found)


def age(pair: Pair, now: float) -> float:
    """Returns which part of its life a certificate has behind it."""
    certificate = x509.load_pem_x509_certificate(pair.certificate)
    begin = (certificate.not_valid_before_utc + _SKEW).timestamp()
    end = certificate.not_valid_after_utc.timestamp()
    return (now - begin) / max(1e-9, end - begin)


def advance(keys: Keys, names: Sequence[str], now: float, lifetime: float) -> Keys:
    """Does the next step of a rotation, if its time has come. A certificate for other names is of no use to anyone, and goes at once."""
    if not serves(keys.current, names):
        return Keys(issue(names, now, lifetime), None, keys.current.ca, now)
    if keys.following is not None:
        if now < keys.since + min(ANNOUNCED, lifetime / 12):
            return keys
        return Keys(keys.following, None, keys.current.ca, now)
    if keys.previous_ca and now >= keys.since + min(WITHDRAWN, lifetime / 4):
        return Keys(keys.current, None, b"", now)
    if not keys.previous_ca and age(keys.current, now) >= 2 / 3:
        return Keys(keys.current, issue(names, now, lifetime), b"", now)
    return keys


_FIELDS = ("ca.crt", "tls.crt", "tls.key")


def to_secret(keys: Keys) -> dict[str, str]:
    """Returns the data of the Secret."""
    data = dict(zip(_FIELDS, keys.current, strict=True))
    if keys.following is not None:
        data |= {f"next-{name}": part for name, part in zip(_FIELDS, keys.following, strict=True)}
    if keys.previous_ca:
        data["previous-ca.crt"] = keys.previous_ca
    data["since"] = repr(keys.since).encode()
    return {name: b64encode(part).decode() for name, part in data.items()}


def from_secret(data: Mapping[str, str]) -> Keys | None:
    """Reads the data of the Secret; None if it has no usable certificate."""
    try:
        read = {name: b64decode(text) for name, text in data.items()}
        current = Pair(*(read[name] for name in _FIELDS))
        following = Pair(*(read[f"next-{name}"] for name in _FIELDS)) if "next-tls.crt" in read else None
        keys = Keys(current, following, read.get("previous-ca.crt", b""), float(read.get("since", b"0")))
        for pair in filter(None, (current, following)):
            x509.load_pem_x509_certificate(pair.certificate)
        return keys
    except (KeyError, ValueError):
        return None


def load(context: ssl.SSLContext, pair: Pair) -> None:
    """Serves new connections with this certificate. OpenSSL reads certificates from files only."""
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "tls.pem"
        file.touch(mode=0o600)
        file.write_bytes(pair.certificate + pair.key)
        context.load_cert_chain(file)

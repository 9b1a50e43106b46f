"""Certificates and keys to try a fleet with. For one that matters, take those of your own authority."""

from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ec import SECP384R1, EllipticCurvePrivateKey, generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509.oid import NameOID

from fedpm.errors import ArtifactError
from fedpm.files import write_atomically


def make(folder: Path, hosts: list[str], nodes: int, days: int) -> list[Path]:
    """Write ca.pem, server.pem and server.key for the SuperLink, and a pair of keys for each SuperNode."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ArtifactError(f"{folder} exists and is not empty: keys are never overwritten; choose another folder")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)  # if it was there
    end = datetime.now(UTC) + timedelta(days=days)
    authority, server = generate_private_key(SECP384R1()), generate_private_key(SECP384R1())
    issuer = _name("fedpm test authority")
    ca = _certificate(issuer, issuer, authority, authority, end)
    ca = ca.add_extension(x509.BasicConstraints(True, 0), critical=True)
    usage = x509.KeyUsage(*(index in (5, 6) for index in range(9)))  # signs certificates and lists of revoked ones
    ca = ca.add_extension(usage, critical=True)
    leaf = _certificate(_name(hosts[0]), issuer, server, authority, end)
    leaf = leaf.add_extension(_alternatives(hosts), critical=False)
    leaf = leaf.add_extension(x509.BasicConstraints(False, None), critical=True)
    files = {
        "ca.pem": ca.sign(authority, hashes.SHA384()).public_bytes(Encoding.PEM),
        "server.pem": leaf.sign(authority, hashes.SHA384()).public_bytes(Encoding.PEM),
        "server.key": _private(server, PrivateFormat.PKCS8),
    }
    for number in range(nodes):
        key = generate_private_key(SECP384R1())
        files[f"node-{number}"] = _private(key, PrivateFormat.OpenSSH)
        files[f"node-{number}.pub"] = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + b"\n"
    for name, data in files.items():
        write_atomically(folder / name, data, mode=0o644 if name.endswith((".pem", ".pub")) else 0o600)
    return [folder / name for name in files]


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _certificate(
    subject: x509.Name,
    issuer: x509.Name,
    key: EllipticCurvePrivateKey,
    issuers_key: EllipticCurvePrivateKey,
    end: datetime,
) -> x509.CertificateBuilder:
    """Begin a certificate; with the identifiers of both keys, without which Python 3.13 refuses it."""
    builder = x509.CertificateBuilder(
        issuer_name=issuer,
        subject_name=subject,
        public_key=key.public_key(),
        serial_number=x509.random_serial_number(),
        not_valid_before=datetime.now(UTC) - timedelta(minutes=5),
        not_valid_after=end,
    )
    own = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    above = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuers_key.public_key())
    return builder.add_extension(own, critical=False).add_extension(above, critical=False)


def _alternatives(hosts: list[str]) -> x509.SubjectAlternativeName:
    names: list[x509.GeneralName] = []
    for host in hosts:
        try:
            names.append(x509.IPAddress(ip_address(host)))
        except ValueError:
            names.append(x509.DNSName(host))
    return x509.SubjectAlternativeName(names)


def _private(key: EllipticCurvePrivateKey, form: PrivateFormat) -> bytes:
    return key.private_bytes(Encoding.PEM, form, NoEncryption())

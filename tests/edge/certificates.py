"""Certificates for tests, made once a run: an authority, the broker's, clients', one that is revoked, one of somebody else."""

import datetime
import ipaddress
import ssl
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

DAY = datetime.timedelta(days=1)


class Authority:
    """A certificate authority with its files below a directory."""

    def __init__(self, directory: Path, name: str = "test authority") -> None:
        self.directory = directory
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.certificate = (
            _builder(self.name, self.name, self.key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(x509.KeyUsage(False, False, False, False, False, True, True, False, False), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self.key.public_key()), critical=False)
            .sign(self.key, hashes.SHA256())
        )
        self.revoked: list[int] = []
        self.serials: dict[str, int] = {}
        self.cafile = directory / f"{name.replace(' ', '-')}.pem"
        self.cafile.write_bytes(_pem(self.certificate))

    def issue(self, file: str, common_name: str, hosts: tuple[str, ...] = (), organization: str = "") -> Path:
        """A file with certificate and key, named `file`.pem."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization)] if organization else []
        subject = x509.Name([*names, x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
        builder = (
            _builder(subject, self.name, key)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()), critical=False)
        )
        if hosts:
            builder = builder.add_extension(x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False)
        certificate = builder.sign(self.key, hashes.SHA256())
        self.serials[file] = certificate.serial_number
        path = self.directory / f"{file}.pem"
        temporary = path.with_suffix(".new")
        temporary.write_bytes(
            _pem(certificate)
            + key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        )
        temporary.replace(path)
        return path

    def revoke(self, *files: str) -> Path:
        """The list of all that were revoked so far."""
        self.revoked += [self.serials[file] for file in files]
        now = datetime.datetime.now(datetime.UTC)
        builder = x509.CertificateRevocationListBuilder().issuer_name(self.name).last_update(now - DAY).next_update(now + DAY)
        for serial in self.revoked:
            one = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(now - DAY).build()
            builder = builder.add_revoked_certificate(one)
        path = self.directory / "revoked.crl"
        temporary = path.with_suffix(".new")
        temporary.write_bytes(builder.sign(self.key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
        temporary.replace(path)
        return path

    def client(self, certificate: Path | None = None, check_name: bool = True) -> ssl.SSLContext:
        """A client's context that trusts this authority."""
        context = ssl.create_default_context(cafile=str(self.cafile))
        context.check_hostname = check_name
        if certificate is not None:
            context.load_cert_chain(certificate)
        return context


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - DAY)
        .not_valid_after(now + DAY)
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _host(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)

"""A certificate authority, the API server's certificate and the service-account key, by openssl."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cluster.console import capture

_DAYS = "365"


@dataclass(frozen=True)
class Certificates:
    """Where the files lie; the folder is private to the cluster."""

    folder: Path

    @property
    def authority(self) -> Path:
        """Trusted by everybody in the cluster."""
        return self.folder / "ca.crt"

    @property
    def server(self) -> Path:
        """The API server's serving certificate."""
        return self.folder / "apiserver.crt"

    @property
    def server_key(self) -> Path:
        """Key of the serving certificate."""
        return self.folder / "apiserver.key"

    @property
    def client(self) -> Path:
        """What the API server shows to kubelets."""
        return self.folder / "kubelet-client.crt"

    @property
    def client_key(self) -> Path:
        """Key of the client certificate."""
        return self.folder / "kubelet-client.key"

    @property
    def service_accounts(self) -> Path:
        """Signs and verifies service-account tokens."""
        return self.folder / "service-accounts.key"


def subject_alternative_names(addresses: Sequence[str]) -> str:
    """The names by which an API server is called, in openssl's notation."""
    service = "kubernetes.default.svc"
    names = ("localhost", "kubernetes", "kubernetes.default", service, f"{service}.cluster.local")
    return ",".join([*(f"DNS:{name}" for name in names), *(f"IP:{address}" for address in addresses)])


def make(folder: Path, addresses: Sequence[str]) -> Certificates:
    """Make all keys and certificates for an API server at these addresses."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    made = Certificates(folder)
    authority_key = folder / "ca.key"
    _openssl(
        *("req", "-x509", *_key_options(authority_key), "-days", _DAYS, "-out", str(made.authority)),
        *("-subj", "/CN=tidepool-cluster-ca", "-addext", "keyUsage=critical,keyCertSign,cRLSign"),
    )
    signed_by = ("-CA", str(made.authority), "-CAkey", str(authority_key), "-days", _DAYS)
    _openssl(
        *("req", "-x509", *_key_options(made.server_key), *signed_by, "-out", str(made.server)),
        *("-subj", "/CN=kube-apiserver", "-addext", "basicConstraints=critical,CA:FALSE"),
        *("-addext", f"subjectAltName={subject_alternative_names(addresses)}"),
        *("-addext", "extendedKeyUsage=serverAuth"),
    )
    _openssl(
        *("req", "-x509", *_key_options(made.client_key), *signed_by, "-out", str(made.client)),
        *("-subj", "/O=system:masters/CN=kube-apiserver-kubelet-client"),
        *("-addext", "basicConstraints=critical,CA:FALSE", "-addext", "extendedKeyUsage=clientAuth"),
    )
    # RSA, because its public half is what offline checkers of tokens expect (RS256).
    _openssl("genrsa", "-out", str(made.service_accounts), "2048")
    return made


def _key_options(path: Path) -> tuple[str, ...]:
    return ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-noenc", "-keyout", str(path))


def _openssl(*arguments: str) -> None:
    capture(["openssl", *arguments])

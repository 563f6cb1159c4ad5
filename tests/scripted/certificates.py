"""Certificates of an authority of the test's own, in files as a mounted Secret has them."""

import ssl
from pathlib import Path

import trustme

POD_NAME = "pods.tidepool.test"


class Secret:
    """A folder with tls.crt, tls.key and ca.crt behind a link that is swapped, as kubelet does it."""

    def __init__(self, folder: Path, authority: trustme.CA) -> None:
        self.folder = folder
        self.authority = authority
        self._versions = 0

    @property
    def certificate(self) -> Path:
        """Chain."""
        return self.folder / "tls.crt"

    @property
    def key(self) -> Path:
        """Private key."""
        return self.folder / "tls.key"

    @property
    def ca(self) -> Path:
        """Authorities."""
        return self.folder / "ca.crt"

    def issue(self, *names: str) -> None:
        """A new certificate in force at once, for these names."""
        issued = self.authority.issue_cert(*names)
        chain = b"".join(blob.bytes() for blob in issued.cert_chain_pems)
        self.write({"tls.crt": chain, "tls.key": issued.private_key_pem.bytes()})

    def write(self, files: dict[str, bytes]) -> None:
        """These files and the authority's, all of them swapped in one step."""
        self._versions += 1
        version = self.folder / f"..{self._versions}"
        version.mkdir(parents=True)
        for name, content in {"ca.crt": self.authority.cert_pem.bytes(), **files}.items():
            (version / name).write_bytes(content)
            link = self.folder / name
            if not link.is_symlink():
                link.symlink_to(f"..data/{name}")
        new = self.folder / "..new"
        new.symlink_to(version.name)
        new.replace(self.folder / "..data")


def client_of(authority: trustme.CA) -> ssl.SSLContext:
    """A client that believes the authority."""
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context

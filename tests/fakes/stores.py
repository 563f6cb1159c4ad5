"""Doubles of what models are loaded from: S3, Google Cloud Storage, the Hugging Face hub. One server each.

They speak as much as a client that lists and reads needs, and check who asks as the real ones do: S3 by the
signature of the whole request (AWS Signature Version 4), Google by the signature of a service account's own token,
the hub by its token and its codes of refusal (huggingface_hub/utils/_http.py, hf_raise_for_status).
"""

import hashlib
import hmac
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit
from xml.sax.saxutils import escape

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Store(ThreadingHTTPServer):
    """`files` by "bucket/key" (of the hub: "owner/name/file"); `asked` are the paths that were read, in order."""

    daemon_threads = True

    def __init__(
        self, handler: type["Answer"], files: Mapping[str, bytes], address: tuple[str, int] = ("127.0.0.1", 0)
    ) -> None:
        super().__init__(address, handler)
        self.files = dict(files)
        self.asked: list[str] = []
        self.token: str | None = None  # of the hub; a repository is gated where one is set
        self.public_key: Any = None  # of Google's account; None: everybody may read
        self.s3_keys: tuple[str, str] | None = None  # None: everybody may read
        self.cut = False  # answers end before their time

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


@contextmanager
def serving(handler: type["Answer"], files: Mapping[str, bytes]) -> Iterator[Store]:
    with Store(handler, files) as store:
        thread = threading.Thread(target=store.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield store
        finally:
            store.shutdown()
            thread.join()


class Answer(BaseHTTPRequestHandler):
    """What the doubles have in common."""

    protocol_version = "HTTP/1.1"
    server: Store

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        self.answer(body=True)

    def do_HEAD(self) -> None:
        self.answer(body=False)

    def answer(self, *, body: bool) -> None:
        raise NotImplementedError

    def say(
        self, status: int, content: bytes = b"", headers: Mapping[str, str] = {}, *, body: bool = True
    ) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if body:
            self.wfile.write(content)

    def file(self, content: bytes, headers: Mapping[str, str], *, body: bool) -> None:
        start, end, status = 0, len(content), 200
        asked = self.headers.get("Range")
        if asked:
            first, _, last = asked.removeprefix("bytes=").partition("-")
            start, end, status = int(first), min(len(content), int(last) + 1 if last else len(content)), 206
            headers = {**headers, "Content-Range": f"bytes {start}-{end - 1}/{len(content)}"}
        tag = f'"{hashlib.md5(content).hexdigest()}"'
        moment = "Fri, 02 Jan 2026 03:04:05 GMT"
        if self.server.cut:
            self.send_response(status)
            self.send_header("Content-Length", str(end - start))
            self.end_headers()
            self.close_connection = True
            return
        self.say(status, content[start:end], {"ETag": tag, "Last-Modified": moment, **headers}, body=body)


class Bucket(Answer):
    """Both object stores: list-type=2 and ranges of objects; who may ask differs."""

    def answer(self, *, body: bool) -> None:
        parts = urlsplit(self.path)
        refusal = self.refusal()
        if refusal:
            code, status = refusal
            self.say(status, f"<Error><Code>{code}</Code><Message>{code}</Message></Error>".encode(), body=body)
            return
        bucket, _, key = unquote(parts.path).lstrip("/").partition("/")
        if not any(name.startswith(f"{bucket}/") for name in self.server.files):
            self.say(404, b"<Error><Code>NoSuchBucket</Code><Message>no such bucket</Message></Error>", body=body)
        elif not key:
            self.say(200, self.listing(bucket, dict(parse_qsl(parts.query))), body=body)
        elif f"{bucket}/{key}" in self.server.files:
            self.server.asked.append(key)
            self.file(self.server.files[f"{bucket}/{key}"], {}, body=body)
        else:
            self.say(404, b"<Error><Code>NoSuchKey</Code><Message>no such key</Message></Error>", body=body)

    def listing(self, bucket: str, query: Mapping[str, str]) -> bytes:
        """One object a page, so that clients must ask for the rest."""
        prefix, after = f"{bucket}/{query.get('prefix', '')}", query.get("continuation-token", "")
        names = sorted(name for name in self.server.files if name.startswith(prefix) and name > after)
        entries = "".join(
            f"<Contents><Key>{escape(name.partition('/')[2])}</Key><Size>{len(self.server.files[name])}</Size>"
            f"<LastModified>2026-01-02T03:04:05.000Z</LastModified>"
            f"<ETag>&quot;{hashlib.md5(self.server.files[name]).hexdigest()}&quot;</ETag></Contents>"
            for name in names[:1]
        )
        more = f"<NextContinuationToken>{escape(names[0])}</NextContinuationToken>" if len(names) > 1 else ""
        return f"<ListBucketResult><KeyCount>1</KeyCount>{more}{entries}</ListBucketResult>".encode()

    def refusal(self) -> tuple[str, int] | None:
        raise NotImplementedError


class S3(Bucket):
    """S3: the request is signed with the account's secret, which never crosses the wire."""

    def refusal(self) -> tuple[str, int] | None:
        keys = self.server.s3_keys
        if keys is None:
            return None
        given = self.headers.get("Authorization", "")
        if f"Credential={keys[0]}/" not in given:
            return "InvalidAccessKeyId", 403
        return (
            None
            if given.endswith(f"Signature={self.signature(given, keys[1])}")
            else ("SignatureDoesNotMatch", 403)
        )

    def signature(self, given: str, secret: str) -> str:
        """docs.aws.amazon.com, "Create a signed AWS API request"."""
        fields = dict(part.strip().partition("=")[::2] for part in given.partition(" ")[2].split(","))
        signed, scope = fields["SignedHeaders"], fields["Credential"].partition("/")[2]
        parts = urlsplit(self.path)
        query = "&".join(
            sorted(f"{quote(name, '-_.~')}={quote(value, '-_.~')}" for name, value in parse_qsl(parts.query, True))
        )
        headers = "".join(f"{name}:{self.headers[name].strip()}\n" for name in signed.split(";"))
        payload = self.headers["x-amz-content-sha256"]
        request = "\n".join([self.command, parts.path, query, headers, signed, payload])
        hashed = hashlib.sha256(request.encode()).hexdigest()
        text = "\n".join(["AWS4-HMAC-SHA256", self.headers["x-amz-date"], scope, hashed])
        key = f"AWS4{secret}".encode()
        for part in scope.split("/"):
            key = hmac.new(key, part.encode(), hashlib.sha256).digest()
        return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()


class Google(Bucket):
    """Google Cloud Storage's XML API: a token that the service account has signed itself."""

    def refusal(self) -> tuple[str, int] | None:
        import jwt

        if self.server.public_key is None:
            return None
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        try:
            jwt.decode(token, self.server.public_key, algorithms=["RS256"], options={"verify_aud": False})
        except jwt.InvalidTokenError:
            return "AuthenticationRequired", 401
        return None


class Hub(Answer):
    """huggingface.co: information about a repository, its tree, its files."""

    def answer(self, *, body: bool) -> None:
        path = urlsplit(self.path).path
        parts = path.removeprefix("/api/models/").strip("/").split("/")
        repository, rest = "/".join(parts[:2]), parts[2:]
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        files = {
            name.removeprefix(f"{repository}/"): content
            for name, content in self.server.files.items()
            if name.startswith(f"{repository}/")
        }
        if not files:
            self.refuse(401, "RepoNotFound", "Repository not found")
        elif self.server.token is not None and token != self.server.token:
            self.refuse(403 if token else 401, "GatedRepo", f"Access to model {repository} is restricted.")
        elif rest[:1] in (["revision"], ["resolve"], ["tree"]) and rest[1] not in ("main", "v1", COMMIT):
            self.refuse(404, "RevisionNotFound", f"Invalid rev id: {rest[1]}")
        elif path.startswith("/api/models/"):
            tree = [
                {"type": "file", "path": name, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
                for name, content in files.items()
            ]
            siblings = [{"rfilename": name} for name in files]
            info = {"_id": "1", "id": repository, "sha": COMMIT, "siblings": siblings, "tags": []}
            self.say(200, json.dumps(tree if "tree" in rest else info).encode(), body=body)
        else:
            name = unquote("/".join(rest[2:]))
            if body:
                self.server.asked.append(name)
            self.file(files[name], {"X-Repo-Commit": COMMIT}, body=body)

    def refuse(self, status: int, code: str, message: str) -> None:
        self.say(status, b"", {"X-Error-Code": code, "X-Error-Message": message})

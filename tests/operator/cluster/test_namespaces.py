"""Hosts that administrators allow the workflows of a namespace."""

import logging
from typing import cast

import pytest

from tidepool_api.contract import WORKFLOW_HOSTS_ANNOTATION
from tidepool_api.hosts import read_hosts
from tidepool_operator.cluster.api import Api
from tidepool_operator.cluster.kinds import Kind, Object
from tidepool_operator.cluster.namespaces import AllowedHosts
from tidepool_operator.errors import ApiError, NotFound, Unavailable


@pytest.mark.parametrize(
    ("text", "hosts", "wrong", "why"),
    [
        ("", (), (), "nothing is allowed by default"),
        ("search.tools, *.tools", ("search.tools", "*.tools"), (), "commas"),
        ("a.b:8080\n10.0.0.7 a.b:8080", ("a.b:8080", "10.0.0.7"), (), "blanks and lines; each counts once"),
        ("Search.Tools.", ("search.tools.",), (), "names have no case"),
        ("*", (), ("*",), "everything is more than anybody means to allow"),
        ("a*.tools, *tools", (), ("a*.tools", "*tools"), "an asterisk stands for whole labels alone"),
        ("http://search.tools", (), ("http://search.tools",), "a URL is no host"),
        ("a.b:0 a.b:65536 a.b:x", (), ("a.b:0", "a.b:65536", "a.b:x"), "no such ports"),
        ("-a.b, a..b", (), ("-a.b", "a..b"), "no such names"),
        (",".join(f"h{n}.b" for n in range(65)), tuple(f"h{n}.b" for n in range(64)), ("h64.b",), "one too many"),
    ],
)
def test_hosts_are_read_and_what_is_none_is_told(
    text: str, hosts: tuple[str, ...], wrong: tuple[str, ...], why: str
) -> None:
    assert read_hosts(text) == (hosts, wrong), why


class Cluster:
    """Namespaces with their annotation, or the error that asking for one gives."""

    def __init__(self, **namespaces: str | ApiError) -> None:
        self.namespaces = namespaces
        self.changes = 0

    async def get(self, kind: Kind, namespace: str | None, name: str) -> Object:
        assert (kind.plural, namespace) == ("namespaces", None)
        found = self.namespaces.get(name, NotFound("gone"))
        if isinstance(found, ApiError):
            raise found
        return {"metadata": {"name": name, "annotations": {WORKFLOW_HOSTS_ANNOTATION: found} if found else None}}

    def changed(self) -> None:
        self.changes += 1

    def hosts(self, *wanted: str) -> AllowedHosts:
        return AllowedHosts(cast(Api, self), lambda: wanted, self.changed)


async def test_the_annotation_is_followed_and_a_change_of_it_is_told() -> None:
    cluster = Cluster(a="search.tools", b="")
    hosts = cluster.hosts("a", "b")
    before = hosts.of("a")
    for text in ("search.tools", "search.tools", "wiki.tools", ""):
        cluster.namespaces["a"] = text
        await hosts.look()
        cluster.changes += 100

    assert before == ()
    assert (hosts.of("a"), hosts.of("b")) == ((), ())
    assert cluster.changes == 400 + 3


async def test_an_api_server_that_is_away_takes_nothing_back_and_a_namespace_that_is_gone_has_nothing() -> None:
    cluster = Cluster(a="search.tools", b="wiki.tools")
    hosts = cluster.hosts("a", "b")
    await hosts.look()
    cluster.namespaces = {"a": Unavailable("away")}
    await hosts.look()

    assert (hosts.of("a"), hosts.of("b")) == (("search.tools",), ())


async def test_what_is_no_host_is_left_out_with_a_word_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    hosts = Cluster(team="*, wiki.tools").hosts("team")
    with caplog.at_level(logging.WARNING):
        await hosts.look()

    assert hosts.of("team") == ("wiki.tools",)
    assert "namespace team" in caplog.text
    assert "'*'" in caplog.text

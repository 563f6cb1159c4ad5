"""Where the steps of workflows may go: only to hosts that somebody allowed, and never to what is forbidden."""

import gzip
from collections.abc import AsyncIterator, Sequence

import pytest

from scripted.upstreams import ScriptedEngine, Seen
from tidepool_router.workflow import hosts as hosts_module
from tidepool_router.workflow.breakers import Breakers
from tidepool_router.workflow.failures import StepFailed
from tidepool_router.workflow.hosts import Hosts, NotAllowed, Unresolved, allowed_hosts
from tidepool_router.workflow.tools import Tools

PUBLIC = "93.184.216.34"


def leading_to(*addresses: str) -> Hosts:
    async def resolve(host: str, port: int) -> Sequence[str]:
        del host, port
        return addresses

    return Hosts(["tool", "*.tools", "other:8443"], ["10.96.0.1"], resolve)


@pytest.mark.parametrize(
    "url",
    ["http://tool/x", "https://TOOL./x", "http://a.b.tools/", "https://other:8443/"],
    ids=["its port", "any spelling", "below", "another port that is named"],
)
async def test_what_is_allowed_is_called_at_the_address_that_was_judged(url: str) -> None:
    _, address, _ = await leading_to(PUBLIC).pinned(url)

    assert address == PUBLIC


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://search.example/", "not among the hosts"),
        ("http://tool:8080/", "not among the hosts"),  # a name without a port is 80 and 443
        ("http://tools/", "not among the hosts"),  # *.tools is what is below
        ("http://eviltools/", "not among the hosts"),
        ("http://other/", "not among the hosts"),
        ("ftp://tool/", "no http"),
        ("tool", "no http"),
        ("http://tool@evil.example/", "user or a password"),
        ("http://user:word@tool/", "user or a password"),
        ("http://tool\\@evil.example/", "not among|no URL|user"),
        ("http://tool:99999/", "no URL"),
        ("http://[::1/", "no URL"),
    ],
)
async def test_what_nobody_allowed_is_not_called(url: str, why: str) -> None:
    with pytest.raises(NotAllowed, match=why):
        await leading_to(PUBLIC).pinned(url)


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "127.8.8.8",
        "::1",
        "0.0.0.0",
        "169.254.169.254",
        "169.254.1.1",
        "fe80::1%eth0",
        "fd00:ec2::254",
        "100.100.100.200",
        "::ffff:127.0.0.1",
        "::ffff:169.254.169.254",
        "64:ff9b::7f00:1",
        "2002:7f00:1::",
        "224.0.0.1",
        "10.96.0.1",  # the API server
        "::ffff:10.96.0.1",
    ],
)
async def test_a_name_that_leads_to_what_is_forbidden_is_not_called(address: str) -> None:
    with pytest.raises(NotAllowed, match="no workflow may call"):
        await leading_to(PUBLIC, address).pinned("http://tool/")


async def test_nothing_is_allowed_by_default() -> None:
    with pytest.raises(NotAllowed, match="--workflow-allow"):
        await Hosts().pinned("http://tool/")


async def test_the_api_servers_address_is_read_from_the_environment() -> None:
    hosts = allowed_hosts(["10.96.0.1"], {"KUBERNETES_SERVICE_HOST": "10.96.0.1"})

    with pytest.raises(NotAllowed, match="no workflow may call"):
        await hosts.pinned("http://10.96.0.1/")


async def test_the_api_servers_address_may_be_given_as_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    led = {"server.example": ["10.0.0.9", PUBLIC], "tool": [PUBLIC], "other": ["8.8.8.8"]}

    async def resolve(host: str, port: int) -> Sequence[str]:
        del port
        return led[host]

    monkeypatch.setattr(hosts_module, "resolve_host", resolve)
    hosts = allowed_hosts(["tool", "other"], {"KUBERNETES_SERVICE_HOST": "server.example"})

    with pytest.raises(NotAllowed, match="no workflow may call"):
        await hosts.pinned("http://tool/")
    assert (await hosts.pinned("http://other/"))[1] == "8.8.8.8"
    led["server.example"] = []  # nobody knows what is forbidden
    with pytest.raises(Unresolved):
        await hosts.pinned("http://other/")


async def test_a_workflows_own_hosts_are_its_own() -> None:
    hosts = leading_to(PUBLIC)

    await hosts.pinned("http://mine.example/", ["mine.example"])
    with pytest.raises(NotAllowed):
        await hosts.pinned("http://mine.example/")


@pytest.fixture
async def tool() -> AsyncIterator[ScriptedEngine]:
    async with ScriptedEngine() as found:
        yield found


async def calling(tool: ScriptedEngine, *, resolved: dict[str, str] | None = None) -> Tools:
    async def resolve(host: str, port: int) -> Sequence[str]:
        del port
        return [(resolved or {}).get(host, "127.0.0.1")]

    return Tools(Hosts([f"tool:{tool.port}", f"meta:{tool.port}"], resolve=resolve, loopback=True), Breakers())


async def test_a_redirect_is_judged_as_the_first_address_was(tool: ScriptedEngine) -> None:
    async def script(seen: Seen) -> None:
        if b"/allowed" in seen.line:
            await seen.answer(b"found")
        else:
            where = seen.line.split(b" ")[1][1:]
            await seen.answer(b"", b"302 Found", b"location: " + where + b"\r\n")

    tool.script = script
    tools = await calling(tool, resolved={"meta": "169.254.169.254"})
    base = f"http://tool:{tool.port}"

    assert await tools.call("GET", f"{base}/{base}/allowed", None, "key") == ("found", None)
    for bad in ("http://127.0.0.1/", f"http://meta:{tool.port}/", "file:///etc/passwd", "http://evil.example/"):
        with pytest.raises(StepFailed) as caught:
            await tools.call("GET", f"{base}/{bad}", None, "key")
        assert not caught.value.again
    with pytest.raises(StepFailed, match="more than 3 redirects"):
        await tools.call("GET", f"{base}//{tool.port}", None, "key")
    await tools.close()


async def test_the_host_is_told_by_its_name_and_the_proxies_of_the_environment_are_not_used(
    tool: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    tools = await calling(tool)

    await tools.call("POST", f"http://tool:{tool.port}/x?y=1", '{"a": 1}', "run-1.a")

    (seen,) = tool.requests
    assert seen.line == b"POST /x?y=1 HTTP/1.1"
    assert seen.headers[b"host"] == f"tool:{tool.port}".encode()
    assert seen.headers[b"idempotency-key"] == b"run-1.a"
    assert seen.headers[b"content-type"] == b"application/json"
    await tools.close()


async def test_an_answer_that_is_too_long_is_not_read_to_its_end(tool: ScriptedEngine) -> None:
    async def script(seen: Seen) -> None:
        await seen.answer(b"x" * (2 << 20))

    tool.script = script
    tools = await calling(tool)

    with pytest.raises(StepFailed, match="longer than 1048576 bytes"):
        await tools.call("GET", f"http://tool:{tool.port}/", None, "key")
    await tools.close()


async def test_an_answer_that_would_be_larger_than_it_comes_is_not_read(tool: ScriptedEngine) -> None:
    async def script(seen: Seen) -> None:  # a megabyte in a kilobyte; a thousand times as much in what may come
        await seen.answer(gzip.compress(bytes(1 << 20)), extra=b"content-encoding: gzip\r\n")

    tool.script = script
    tools = await calling(tool)

    with pytest.raises(StepFailed, match="answers in 'gzip', which it was not asked for") as failed:
        await tools.call("GET", f"http://tool:{tool.port}/", None, "key")
    assert not failed.value.again
    assert tool.requests[0].headers[b"accept-encoding"] == b"identity"
    await tools.close()


async def test_a_name_that_is_not_known_for_a_moment_is_asked_for_again() -> None:
    async def resolve(host: str, port: int) -> Sequence[str]:
        raise OSError("temporary failure in name resolution")

    tools = Tools(Hosts(["tool"], resolve=resolve), Breakers())

    with pytest.raises(StepFailed, match="temporary failure") as failed:
        await tools.call("GET", "http://tool/", None, "key")
    assert failed.value.again
    await tools.close()


@pytest.mark.parametrize("path", ["a\x0bb", "a\ud800b"], ids=["a control character", "half a surrogate pair"])
async def test_what_a_template_made_of_a_url_is_told_where_it_is_none(tool: ScriptedEngine, path: str) -> None:
    tools = await calling(tool)

    with pytest.raises(StepFailed, match="is no URL") as failed:
        await tools.call("GET", f"http://tool:{tool.port}/{path}", "\ud800", "key")
    assert not failed.value.again
    await tools.close()


async def test_a_host_that_fails_again_and_again_is_left_alone_kagent_1530(tool: ScriptedEngine) -> None:
    async def script(seen: Seen) -> None:
        await seen.answer(b"", b"503 Service Unavailable")

    tool.script = script
    tools = await calling(tool)
    for _ in range(8):
        with pytest.raises(StepFailed):
            await tools.call("GET", f"http://tool:{tool.port}/", None, "key")

    assert len(tool.requests) == 5
    with pytest.raises(StepFailed, match="left alone"):
        await tools.call("GET", f"http://tool:{tool.port}/", None, "key")
    await tools.close()

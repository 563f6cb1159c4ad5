"""A support bundle has no secret and no prompt, wherever they stood."""

import json
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.objects import EVENT, NOW, Made, pod, pool
from scripted.examples import examples
from tidepool_cli import bundle, redact
from tidepool_cli.errors import CliError

SECRET = "Zq8vXw2LmPn4RtY6"
PLACES = {
    "an environment's value": {"env": [{"name": "ANYTHING", "value": SECRET}]},
    "an environment written as a mapping": {"env": {"ANYTHING": SECRET}},
    "an argument after its flag": {"args": ["--api-key", SECRET]},
    "an argument with its flag": {"args": [f"--hf-token={SECRET}"]},
    "a URL": {"url": f"https://user:{SECRET}@registry/"},
    "a Secret's data": {"data": {"key": SECRET}},
    "the last applied object": {
        "annotations": {"kubectl.kubernetes.io/last-applied-configuration": f'{{"x":"{SECRET}"}}'}
    },
    "a field that is called so": {"clientSecret": SECRET},
    "a header in a message": {"message": f"401 for Authorization: Bearer {SECRET}"},
    "a token by its form": {"message": f"cannot log in with hf_{SECRET}"},
}


@pytest.mark.parametrize("place", PLACES)
def test_a_secret_is_hidden_in(place: str) -> None:
    assert SECRET not in json.dumps(redact.document({"spec": PLACES[place]}))


def test_the_end_of_a_log_in_a_pods_status_quotes_no_request() -> None:
    ended = {"reason": "Error", "message": "Received request x: prompt: 'tell me'\nRuntimeError: out of memory"}
    hidden = redact.document({"status": {"containerStatuses": [{"lastState": {"terminated": ended}}]}})

    assert "tell me" not in json.dumps(hidden)
    assert "RuntimeError: out of memory" in json.dumps(hidden)


def test_what_helps_is_kept() -> None:
    value = {
        "metadata": {"name": "chat", "annotations": {"tidepool.dev/restart": "2"}},
        "spec": {
            "model": {"uri": "hf://a/b", "authSecretRef": {"name": "hf-token"}},
            "args": ["--max-num-seqs=256", "--enable-prefix-caching"],
            "env": [{"name": "POD_NAME", "value": "chat-a"}],
        },
    }

    assert redact.document(value) == value


@examples(20)
@given(
    st.recursive(
        st.text(max_size=8),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    )
)
def test_no_environment_survives_whatever_it_stands_in(around: object) -> None:
    planted = {
        "spec": {"around": around, "containers": [{"env": [{"name": "X", "value": SECRET}], "around": around}]}
    }

    assert SECRET not in json.dumps(redact.document(planted))


@pytest.mark.parametrize(
    ("line", "kept"),
    [
        pytest.param("Received request cmpl-1: prompt: 'my diary'", False, id="the engine's log of requests"),
        pytest.param("{'messages': [{'role': 'user', 'content': 'my diary'}]}", False, id="a body in an error"),
        pytest.param(
            "Input should be valid [type=x, input_value='my diary']", False, id="pydantic shows what it got"
        ),
        pytest.param("Avg prompt throughput: 12.1 tokens/s, my diary", True, id="counts are no prompt"),
        pytest.param("CUDA out of memory. Tried to allocate 2 GiB, my diary", True, id="what one looks for"),
    ],
)
def test_lines_that_may_quote_a_request_are_left_out(line: str, kept: bool) -> None:
    assert ("my diary" in redact.log(f"before\n{line}\nafter\n")) is kept
    assert redact.log(f"before\n{line}\nafter\n").count("\n") >= 3  # that something was there is said


def test_a_bundle_has_what_there_is_and_says_what_is_missing(tmp_path: Path) -> None:
    bad = pod("chat-a", restarts=2, env=[{"name": "HF_TOKEN", "value": SECRET}], args=["--api-key", SECRET])
    log = f"loading\nHTTP 401 with token={SECRET}\nprompt: 'my diary {SECRET}'\n"
    cluster = Made(
        {"modelpools.tidepool.dev": [pool()], "pods": [bad], "events": [EVENT], "nodes": [], "jobs": []}, log
    )
    told: list[str] = []

    files = bundle.collect(cluster, "chat", NOW, told.append)
    bundle.write(files, tmp_path / "chat.tar.gz", "chat", NOW)

    with tarfile.open(tmp_path / "chat.tar.gz") as archive:
        names = {each.name.removeprefix("chat/") for each in archive.getmembers()}
        content = b"".join(archive.extractfile(each).read() for each in archive.getmembers() if each.isfile())  # type: ignore[union-attr]
    assert names >= {
        "pool.json",
        "pods.json",
        "explain.txt",
        "logs/chat-a/engine.log",
        "logs/chat-a/engine.previous.log",
    }
    assert "deployments.json.missing.txt" in names  # that was refused; the rest is there all the same
    for planted in (SECRET, "my diary", "hunter2"):
        assert planted.encode() not in content, planted
    assert b"HTTP 401" in content
    assert told[0] == "pool.json"
    assert (tmp_path / "chat.tar.gz").stat().st_mode & 0o077 == 0
    with pytest.raises(CliError, match="is there already"):
        bundle.write(files, tmp_path / "chat.tar.gz", "chat", NOW)

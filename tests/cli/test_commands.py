"""The commands as a person types them: what they print, where, and with which exit status."""

import json
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from cli.objects import Made, pod, pool
from tidepool_cli import __main__ as program
from tidepool_cli import asking, completion, running
from tidepool_cli.errors import CliError
from tidepool_cli.kubectl import Kubectl


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Made:
    made = Made({"modelpools.tidepool.dev": [pool()], "pods": [pod("chat-a")], "events": []})
    monkeypatch.setattr(program, "Kubectl", lambda options=(): made)
    return made


def test_top_prints_once_where_nobody_watches(cluster: Made, capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main(["top"]) == 0

    out = capsys.readouterr().out
    assert "chat" in out
    assert "\x1b" not in out


def test_top_renews_itself_in_a_terminal_until_it_is_ended(
    cluster: Made, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    looks: list[float] = []

    def sleep(seconds: float) -> None:
        looks.append(seconds)
        cluster.objects["modelpools.tidepool.dev"] = [pool(desiredReplicas=7)]
        if len(looks) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr("tidepool_cli.__main__.time.sleep", sleep)

    assert program.main(["top"]) == 130
    first, second = capsys.readouterr().out.split("\x1b[H\x1b[2J\x1b[3J")[1:]
    assert ("  4  " in first, "  7  " in second) == (True, True)
    assert program.main(["top", "--once"]) == 0


@pytest.mark.parametrize(
    ("terminal", "environment", "coloured", "reason"),
    [
        (True, {}, True, "somebody sees it"),
        (False, {}, False, "a file or a pipe"),
        (True, {"NO_COLOR": "1"}, False, "no-color.org"),
        (True, {"TERM": "dumb"}, False, "a terminal that has none"),
    ],
)
def test_there_are_colours_only_where_somebody_sees_them(
    terminal: bool,
    environment: dict[str, str],
    coloured: bool,
    reason: str,
    cluster: Made,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in ({"TERM": "xterm", "NO_COLOR": ""} | environment).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)

    assert program.main(["explain", "chat"]) == 0
    assert ("\x1b[" in capsys.readouterr().out) is coloured, reason


def test_json_is_for_machines(cluster: Made, capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main(["explain", "chat", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["name"] == "chat"

    assert program.main(["top", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["wanted"] == 4


def test_a_pool_that_is_not_there_is_said_on_standard_error(
    cluster: Made, capsys: pytest.CaptureFixture[str]
) -> None:
    assert program.main(["explain", "caht"]) == 2

    told = capsys.readouterr()
    assert told.out == ""
    assert "caht" in told.err


def test_a_file_with_mistakes_ends_with_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "pool.yaml"
    file.write_text(
        "apiVersion: tidepool.dev/v1alpha1\nkind: ModelPool\nmetadata: {name: a}\nspec: {replicas: -1}\n"
    )

    assert program.main(["validate", str(file), "-o", "json"]) == 1
    assert {each["field"] for each in json.loads(capsys.readouterr().out)["findings"]} >= {
        "spec.replicas",
        "spec.model",
    }
    assert program.main(["validate", str(tmp_path / "none.yaml")]) == 2
    assert "cannot be read" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("status", "code", "out"),
    [
        pytest.param(
            {"phase": "Succeeded", "output": "42", "steps": 2, "tokens": 9}, 0, "42\n", id="its answer is printed"
        ),
        pytest.param({"phase": "Failed", "reason": "step plan failed"}, 1, "", id="a run that failed"),
    ],
)
def test_a_run_is_begun_and_waited_for(
    status: dict[str, object], code: int, out: str, cluster: Made, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.objects["agentworkflows.tidepool.dev"] = [{"metadata": {"name": "two"}}]
    cluster.objects[running.RESOURCE] = [{"metadata": {"name": "two-x7k2p"}, "status": status}]

    assert program.main(["run", "two", "--input", '{"text": "hi"}']) == code

    told = capsys.readouterr()
    assert told.out == out
    assert str(status.get("reason", "")) in told.err
    assert cluster.created[0]["spec"] == {"workflow": "two", "input": {"text": "hi"}}


def test_a_run_that_nobody_waits_for_is_named(cluster: Made, capsys: pytest.CaptureFixture[str]) -> None:
    cluster.objects["agentworkflows.tidepool.dev"] = [{"metadata": {"name": "two"}}]

    assert program.main(["run", "two", "--no-wait"]) == 0
    name = capsys.readouterr().out.strip()
    assert program.main(["run", "two", "--no-wait", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"name": name}


def test_a_run_that_takes_too_long_goes_on_and_is_named(cluster: Made) -> None:
    cluster.objects[running.RESOURCE] = [{"metadata": {"name": "two-1"}, "status": {"phase": "Running"}}]

    with pytest.raises(CliError, match="kubectl get awr two-1"):
        running.wait(cluster, "two-1", -1.0, lambda line: None)


def test_usage_is_asked_for_where_the_gateway_runs(cluster: Made, capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main(["usage", "--since", "7d", "--by", "key,day", "-o", "csv"]) == 0

    asked = "tidepool-router usage --since 7d --by key,day --output csv"
    assert capsys.readouterr().out == f"deploy/tidepool-gateway: {asked}\n"


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ('error: the server doesn\'t have a resource type "modelpools"', "install the chart"),
        ('Error from server (NotFound): modelpools.tidepool.dev "x" not found', "-n chooses another"),
        ('Error from server (Forbidden): pods is forbidden: User "u" cannot list', "tidepool-view"),
        (
            "The connection to the server 127.0.0.1:1 was refused - did you specify the right host?",
            "cluster is up",
        ),
        ("error: something new", "kubectl: something new"),
    ],
)
def test_kubectls_words_get_a_remedy(
    said: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = tmp_path / "kubectl"
    fake.write_text(f"#!/bin/sh\ncat >&2 <<'E'\n{said}\nE\nexit 1\n")
    fake.chmod(fake.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    with pytest.raises(CliError, match=words):
        Kubectl().get("modelpools.tidepool.dev", "x")


def test_a_log_that_is_no_text_is_read_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "kubectl"
    fake.write_text("#!/bin/sh\nprintf 'loaded \\377\\376 weights'\n")
    fake.chmod(fake.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    assert Kubectl().logs("chat-a", "engine", 10) == "loaded \ufffd\ufffd weights"


@pytest.mark.parametrize(("terminal", "out"), [(True, "42?[2J\n"), (False, "42\x1b[2J\n")])
def test_what_a_model_wrote_gives_a_terminal_no_orders(
    terminal: bool, out: str, cluster: Made, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.objects["agentworkflows.tidepool.dev"] = [{"metadata": {"name": "two"}}]
    status = {"phase": "Succeeded", "output": "42\x1b[2J"}
    cluster.objects[running.RESOURCE] = [{"metadata": {"name": "two-x7k2p"}, "status": status}]
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)

    assert program.main(["run", "two"]) == 0
    assert capsys.readouterr().out == out


def test_what_is_no_gateway_is_told_and_not_a_stack_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    import httpx

    monkeypatch.setattr(httpx.Client, "post", lambda *_, **__: httpx.Response(200, text="<html>"))

    with pytest.raises(CliError, match="is it a gateway of Tidepool"):
        asking.route("http://127.0.0.1:1", "m", "hi")


def test_without_kubectl_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(CliError, match="install it"):
        Kubectl().list("pods")


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        pytest.param(["ex"], {"explain"}, id="a command"),
        pytest.param(["explain", ""], {"chat"}, id="names in the cluster"),
        pytest.param(["top", "--al"], {"--all-namespaces"}, id="an option"),
        pytest.param(["completion", "z"], {"zsh"}, id="a shell"),
    ],
)
def test_shells_complete(
    typed: list[str], found: set[str], cluster: Made, capsys: pytest.CaptureFixture[str]
) -> None:
    assert program.main(["__complete", *typed]) == 0
    assert set(capsys.readouterr().out.split()) == found


@pytest.mark.parametrize(
    ("words", "found"), [(["ex"], ["explain"]), (["run", "digest", "--time"], ["--timeout"]), (["nothing"], [])]
)
def test_bash_completes_with_what_it_is_given_to_source(words: list[str], found: list[str]) -> None:
    typed = f'COMP_WORDS=(tidepool "$@"); COMP_CWORD={len(words)}; _tidepool; printf "%s\\n" "${{COMPREPLY[@]}}"'
    script = f'tidepool() {{ "{sys.executable}" -m tidepool_cli "$@"; }}\n{completion.SCRIPTS["bash"]}\n{typed}'
    done = subprocess.run(
        ["bash", "-c", script, "bash", *words], capture_output=True, text=True, timeout=60, check=False
    )

    assert (done.stdout.split(), done.stderr) == (found, "")


def test_help_is_quick_because_nothing_heavy_is_imported() -> None:
    asked = "import sys, tidepool_cli.__main__ as m; m.options.parser('t').format_help(); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, timeout=60, check=True)

    assert not {"pydantic", "yaml", "httpx", "kubernetes", "jinja2", "asyncio"} & set(done.stdout.split())

"""A machine that cannot hold the cluster says so at once, with the remedy and the way out."""

import os
import platform
import shutil
from pathlib import Path

import pytest

from cluster import requirements
from cluster.__main__ import main
from cluster.errors import ClusterError, Unsuitable
from cluster.paths import cluster_name


def test_another_system_is_named_and_nothing_else_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    with pytest.raises(Unsuitable, match="it runs Darwin") as refusal:
        requirements.check()
    assert "make demo CONTEXT=" in str(refusal.value)


def test_a_user_who_is_not_root_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(Unsuitable, match=r"you are not root.*sudo") as refusal:
        requirements.check()
    assert "CONTEXT" in str(refusal.value)


def test_a_missing_compiler_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert any("install Go" in problem for problem in requirements.problems())


def test_a_compiler_that_is_too_old_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    old = tmp_path / "go"
    old.write_text("#!/bin/sh\necho go version go1.19.8 linux/amd64\n")
    old.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert any("its Go is 1.19" in problem for problem in requirements.problems())


def test_a_full_disk_is_named_with_the_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    full = shutil.disk_usage(tmp_path)._replace(free=2**30)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: full)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "not" / "made" / "yet"))
    (problem,) = (one for one in requirements.problems() if "GiB are free" in one)
    assert f"1 GiB are free at {tmp_path}" in problem
    assert "25 GiB are needed" in problem
    assert "XDG_CACHE_HOME" in problem


def test_an_error_of_the_cluster_is_one_message_and_a_status(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tools", "kubectx"]) == 1
    assert "error: no such tool: kubectx" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["UPPER", "a-b", "1a", "averylongname", "a/b"])
def test_a_name_that_no_network_device_can_have_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEPOOL_CLUSTER", name)
    with pytest.raises(ClusterError, match="small letters"):
        cluster_name()

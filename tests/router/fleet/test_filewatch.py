"""The fleet file: read again when it changes; a bad one is refused and the old one stays."""

import asyncio
import logging
import os
from pathlib import Path
from typing import Any

import pytest

from tidepool_router.fleet import filewatch
from tidepool_router.fleet.document import FleetDocument, FleetError
from tidepool_router.fleet.filewatch import FleetFile, KeysFile
from tidepool_router.keys import ApiKey, KeysError


def text(name: str) -> str:
    return f"pools:\n- name: {name}\n  models: [m]\n"


class Applied:
    def __init__(self) -> None:
        self.names: list[str] = []

    def __call__(self, document: FleetDocument) -> None:
        self.names.append(document.fleet.pools[0].name)


@pytest.fixture
async def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(filewatch, "_INTERVAL_SECONDS", 0.005)
    path = tmp_path / "fleet.yaml"
    path.write_text(text("one"))
    applied = Applied()
    file = FleetFile(path, applied)
    await file.load()
    task = asyncio.create_task(file.run())
    yield path, applied
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_change_is_applied_once(watched: Any, eventually: Any) -> None:
    path, applied = watched
    path.write_text(text("two"))
    await eventually(lambda: applied.names[-1] == "two")
    await asyncio.sleep(0.05)

    assert applied.names == ["one", "two"]


async def test_a_swapped_link_is_a_change(watched: Any, eventually: Any, tmp_path: Path) -> None:
    """A mounted ConfigMap changes by a rename of a link; size and even time may be the same."""
    path, applied = watched
    other = tmp_path / "other.yaml"
    other.write_text(text("two"))
    os.utime(other, ns=(path.stat().st_mtime_ns, path.stat().st_mtime_ns))
    link = tmp_path / "link"
    link.symlink_to(other)
    link.rename(path)

    await eventually(lambda: applied.names[-1] == "two")


async def test_a_bad_file_is_refused_with_its_line_and_the_next_good_one_counts(
    watched: Any, eventually: Any, caplog: pytest.LogCaptureFixture
) -> None:
    path, applied = watched
    path.write_text("pools:\n- name: two\n  models: []\n")
    await eventually(lambda: bool(caplog.records))
    record = caplog.records[0]

    assert record.levelno == logging.ERROR
    assert "what was before stays" in record.message
    assert (record.line, "pools[0].models" in record.reason) == (3, True)  # type: ignore[attr-defined]
    assert applied.names == ["one"]

    path.write_text(text("three"))
    await eventually(lambda: applied.names == ["one", "three"])
    assert sum(r.levelno == logging.ERROR for r in caplog.records) == 1  # once, not every second


async def test_what_goes_wrong_with_one_change_does_not_end_the_watch(
    watched: Any, eventually: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, applied = watched
    monkeypatch.setattr(Applied, "__call__", lambda self, document: 1 / 0)  # say, the store of runs is away
    path.write_text(text("two"))
    await eventually(lambda: "fleet file could not be applied" in caplog.text)
    monkeypatch.undo()
    monkeypatch.setattr(filewatch, "_INTERVAL_SECONDS", 0.005)

    path.write_text(text("three, better"))

    await eventually(lambda: applied.names[-1] == "three, better")


async def test_a_file_that_became_no_text_is_told_of_once(
    watched: Any, eventually: Any, caplog: pytest.LogCaptureFixture
) -> None:
    path, applied = watched
    path.write_bytes(b"\xff\xfe\x00")
    await eventually(lambda: bool(caplog.records))
    await asyncio.sleep(0.05)  # ten looks
    path.write_text(text("two"))
    await eventually(lambda: applied.names == ["one", "two"])

    assert sum(record.levelno == logging.ERROR for record in caplog.records) == 1


async def test_a_missing_file_changes_nothing(
    watched: Any, eventually: Any, caplog: pytest.LogCaptureFixture
) -> None:
    path, applied = watched
    path.unlink()
    await eventually(lambda: any("missing" in r.message for r in caplog.records))
    path.write_text(text("back"))

    await eventually(lambda: applied.names == ["one", "back"])


async def test_a_file_that_is_not_there_at_first_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FleetError, match="cannot be read"):
        await FleetFile(tmp_path / "none.yaml", Applied()).load()


async def test_an_empty_file_is_no_fleet_yet_or_an_error(tmp_path: Path) -> None:
    path = tmp_path / "fleet.json"
    path.write_text("\n")
    applied = Applied()

    await FleetFile(path, applied, may_be_empty=True).load()
    assert applied.names == []
    with pytest.raises(FleetError, match="mapping"):
        await FleetFile(path, applied).load()


async def test_a_file_that_is_no_text_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_bytes(b"\xff\xfe\x00")

    with pytest.raises(FleetError, match="cannot be read"):
        await FleetFile(path, Applied()).load()


async def test_a_keys_file_that_turns_bad_or_empty_opens_nothing_and_the_keys_from_before_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, eventually: Any
) -> None:
    monkeypatch.setattr(filewatch, "_INTERVAL_SECONDS", 0.005)
    path = tmp_path / "keys.yaml"
    good = f"keys:\n- {{id: abcdefgh, sha256: {'a' * 64}, tenant: a}}\n"
    path.write_text(good)
    applied: list[tuple[ApiKey, ...]] = []
    file = KeysFile(path, applied.append)
    await file.load()
    task = asyncio.create_task(file.run())
    path.write_text("")
    await eventually(lambda: "keys file refused; what was before stays" in caplog.text)
    path.write_text(good.replace("tenant: a", "tenant: bb"))
    await eventually(lambda: len(applied) == 2)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)

    assert [keys[0].tenant for keys in applied] == ["a", "bb"]


async def test_a_keys_file_that_is_missing_at_the_start_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(KeysError, match="cannot be read"):
        await KeysFile(tmp_path / "none.yaml", lambda _: None).load()

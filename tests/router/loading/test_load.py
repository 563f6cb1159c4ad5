"""Models from stores of each kind, by the clients that the image has, against doubles on loopback."""

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from fakes.stores import S3, Google, Hub, Store, serving
from tidepool_operator.pool.engine_log import read_log
from tidepool_operator.pool.reasons import Reason
from tidepool_router.loading import stores
from tidepool_router.loading.command import load, outcome
from tidepool_router.loading.errors import FilesBrokenError
from tidepool_router.loading.folder import drop

pytestmark = pytest.mark.traffic

WEIGHTS = bytes(range(256)) * 500
MODEL = {
    "config.json": b"{}",
    "model-00001-of-00002.safetensors": WEIGHTS,
    "model-00002-of-00002.safetensors": WEIGHTS[::-1],
    "tokenizer/tokenizer.json": b'{"a": 1}',
}
# Other formats of the same weights, which no engine needs.
BESIDE = {"pytorch_model.bin": b"x" * 9, "original/consolidated.00.pth": b"y", "onnx/model.onnx": b"z"}
KEYS = ("AKIDEXAMPLE", "a/very+secret")


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_ENDPOINT_URL", "AWS_SESSION_TOKEN", "GOOGLE_BASE_URL", "HF_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEYS[0])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", KEYS[1])


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    files = {f"models/llama/v1/{name}": content for name, content in {**MODEL, **BESIDE}.items()}
    with serving(S3, {**files, "models/llama/v10/other.json": b"1", "models/llama/v1/": b""}) as store:
        store.s3_keys = KEYS
        monkeypatch.setenv("AWS_ENDPOINT_URL", store.url)
        yield store


@pytest.fixture
def google(monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    with serving(Google, {f"models/llama/{name}": content for name, content in MODEL.items()}) as store:
        monkeypatch.setenv("GOOGLE_BASE_URL", store.url)
        yield store


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    with serving(Hub, {f"acme/llama/{name}": content for name, content in {**MODEL, **BESIDE}.items()}) as store:
        monkeypatch.setenv("HF_ENDPOINT", store.url)
        yield store


def there(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and ".tidepool" not in path.parts
    }


def test_a_model_comes_from_s3_in_ranges_and_whole(
    s3: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores, "_RANGE_BYTES", 10_000)

    assert load("s3://models/llama/v1/", tmp_path / "a")
    assert there(tmp_path / "a") == MODEL
    assert len(s3.asked) == 2 * 13 + 2, "each file of weights in ranges, and what nobody needs not at all"
    assert [path.name for path in tmp_path.iterdir() if not path.name.startswith(".")] == ["a"]


def test_what_is_whole_is_not_asked_for_again(s3: Store, tmp_path: Path) -> None:
    load("s3://models/llama/v1", tmp_path / "a")
    s3.asked.clear()

    assert not load("s3://models/llama/v1", tmp_path / "a")
    assert s3.asked == []


def test_a_file_that_was_cut_or_lost_is_brought_again_and_nothing_else(s3: Store, tmp_path: Path) -> None:
    load("s3://models/llama/v1", tmp_path / "a")
    s3.asked.clear()
    (tmp_path / "a" / "model-00001-of-00002.safetensors").write_bytes(b"cut")
    (tmp_path / "a" / "config.json").unlink()

    assert load("s3://models/llama/v1", tmp_path / "a")
    assert there(tmp_path / "a") == MODEL
    assert sorted(s3.asked) == ["llama/v1/config.json", "llama/v1/model-00001-of-00002.safetensors"]


def test_a_name_that_leads_out_of_the_folder_is_refused(s3: Store, tmp_path: Path) -> None:
    s3.files["models/llama/v1/../../escape"] = b"no"

    with pytest.raises(FilesBrokenError, match="invalid path"):
        load("s3://models/llama/v1", tmp_path / "a")
    assert not (tmp_path / "a").exists()
    assert not (tmp_path / "escape").exists()


def test_several_that_load_at_once_load_once(s3: Store, tmp_path: Path) -> None:
    made: list[bool] = []
    threads = [
        threading.Thread(target=lambda: made.append(load("s3://models/llama/v1", tmp_path / "a")))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(made) == [False, False, False, True]
    assert len(s3.asked) == len(MODEL)


def reason(uri: str, folder: Path, revision: str | None = None) -> Reason | None:
    """As the operator reads the loader's last line."""
    line = outcome(uri, folder, revision)
    said = read_log(f"2026-01-01 00:00:00,000 tidepool.load: starting\n{line}")
    return said.reason if said else None


def test_refusals_of_s3_have_reasons(s3: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "_RETRIES", 0)
    assert reason("s3://nobody/llama", tmp_path / "a") is Reason.MODEL_NOT_FOUND
    assert reason("s3://models/nothing", tmp_path / "a") is Reason.MODEL_NOT_FOUND
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    assert reason("s3://models/llama/v1", tmp_path / "a") is Reason.STORAGE_ACCESS_DENIED
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    assert reason("s3://models/llama/v1", tmp_path / "a") is Reason.STORAGE_UNREACHABLE


def test_a_secret_is_in_no_message(s3: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong-but-secret")

    line = outcome("s3://models/llama/v1", tmp_path / "a", None)
    assert line is not None
    assert "wrong-but-secret" not in line
    assert KEYS[0] not in line


def test_a_public_bucket_needs_no_account(s3: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    s3.s3_keys = None
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")

    assert load("s3://models/llama/v1", tmp_path / "a")


def test_a_model_comes_from_google_by_a_service_accounts_key(
    google: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = rsa.generate_private_key(65537, 2048)
    google.public_key = key.public_key()
    text = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    account = {
        "type": "service_account",
        "client_email": "loader@acme.iam.gserviceaccount.com",
        "private_key_id": "1",
        "private_key": text,
    }
    monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT_KEY", json.dumps(account))

    assert load("gs://models/llama", tmp_path / "a")
    assert there(tmp_path / "a") == MODEL

    other = rsa.generate_private_key(65537, 2048)
    google.public_key = other.public_key()
    assert reason("gs://models/llama", tmp_path / "b") is Reason.STORAGE_ACCESS_DENIED


def test_a_model_comes_from_the_hub_at_one_commit(hub: Store, tmp_path: Path) -> None:
    assert load("hf://acme/llama", tmp_path / "a", "v1")
    assert there(tmp_path / "a") == MODEL
    assert sorted(hub.asked) == sorted(MODEL)


def test_refusals_of_the_hub_have_the_engines_reasons(
    hub: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert reason("hf://acme/unknown", tmp_path / "a") is Reason.MODEL_NOT_FOUND
    assert reason("hf://acme/llama", tmp_path / "a", "v9") is Reason.REVISION_NOT_FOUND
    hub.token = "hf_granted"
    assert reason("hf://acme/llama", tmp_path / "a") is Reason.MODEL_GATED
    monkeypatch.setenv("HF_TOKEN", "hf_granted")
    assert outcome("hf://acme/llama", tmp_path / "a", None) is None
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert reason("hf://acme/llama", tmp_path / "b") is Reason.HUB_UNREACHABLE


def test_a_disk_that_is_full_has_a_reason(s3: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(stores.os, "pwrite", full)
    assert reason("s3://models/llama/v1", tmp_path / "a") is Reason.DISK_FULL


def test_the_program_ends_at_once_by_a_signal_and_says_its_cause_last(s3: Store, tmp_path: Path) -> None:
    def start(uri: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "tidepool_router", "load", uri, str(tmp_path / "a")]
        return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)

    with start("s3://models/nothing") as failing:
        said = failing.stderr.read() if failing.stderr else ""
    assert failing.returncode == 1
    assert said.splitlines()[-1].startswith(
        "tidepool_router.loading.errors.StorageNotFoundError: s3://models/nothing"
    )

    # Somebody else holds the folder: it waits, as a second pod of a node does.
    import fcntl

    (tmp_path / ".locks").mkdir(exist_ok=True)
    with (tmp_path / ".locks" / "a").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with start("s3://models/llama/v1") as waiting:
            assert waiting.stderr is not None
            assert "waiting" in waiting.stderr.readline()
            begun = time.monotonic()
            waiting.send_signal(signal.SIGTERM)
        assert waiting.returncode == 143
        assert time.monotonic() - begun < 5


def test_what_several_loaded_goes_with_the_last_of_them(s3: Store, tmp_path: Path) -> None:
    folder = tmp_path / "models" / "a"
    for user in ("ns.one", "ns.two"):
        load("s3://models/llama/v1", folder, user=user)
    (tmp_path / "models" / "a.part").mkdir()

    assert not drop(folder, "ns.one")
    assert there(folder) == MODEL
    assert drop(folder, "ns.two")
    assert not folder.exists()
    assert not folder.with_name("a.part").exists()
    assert drop(folder, "ns.two"), "once is enough"
    assert drop(tmp_path / "nowhere" / "b", "ns.two")

"""Makes the logs beside this file: real vLLM 0.32 on the CPU, led into one trouble after another.

    PYTHONPATH=e2e .venv/bin/python tests/operator/pool/logs/make.py [NAME ...]

Every case is one start of the engine that ends by itself; what it printed is kept with paths, numbers of processes
and times made the same for everybody. Models from "the hub" come from a double on loopback that answers in the
words and headers of huggingface.co, as huggingface_hub reads them (utils/_http.py, hf_raise_for_status). The disk
that is full is a real one: a tmpfs of 64 KiB, so that case needs root.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from cluster import engine_install
from cluster.engine import ENVIRONMENT

HERE = Path(__file__).parent
LINES = 200
SECONDS = 240
COMMIT = "0123456789abcdef0123456789abcdef01234567"

Change = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class Case:
    """Arguments after the model, environment over the engine's usual one, and the model as it is led astray."""

    name: str
    how: str
    args: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    model: str = ""  # a repository of the hub's double, or a path; empty: the tiny model
    config: Change | None = None  # changes config.json of a copy of the tiny model
    without: Sequence[str] = ()  # files that the copy lacks
    spoilt: Sequence[str] = ()  # files that the copy has cut in half
    before: Sequence[str] = ()  # words before the command


def _unknown_architecture(config: dict[str, Any]) -> None:
    config["architectures"] = ["NautilusForCausalLM"]
    config["model_type"] = "nautilus"


def _other_architecture(config: dict[str, Any]) -> None:
    config["architectures"] = ["NautilusForCausalLM"]


def _own_code(config: dict[str, Any]) -> None:
    config["model_type"] = "nautilus"
    config["auto_map"] = {"AutoConfig": "configuration_nautilus.NautilusConfig"}


def _awq(config: dict[str, Any]) -> None:
    config["quantization_config"] = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}


def _without_stages(config: dict[str, Any]) -> None:
    config["architectures"] = ["HrmTextForCausalLM"]


def _gemma(config: dict[str, Any]) -> None:
    config["architectures"], config["model_type"] = ["Gemma2ForCausalLM"], "gemma2"


NIXL = '{"kv_connector":"NixlConnector","kv_role":"kv_consumer"}'
LORA = ("--enable-lora", "--max-lora-rank=8")
LONG = {"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"}

CASES = (
    Case("hub-unknown-model", "the hub has no such repository (and says 401, as it does)", model="acme/unknown"),
    Case("hub-gated-no-token", "a gated repository, no token", model="acme/gated"),
    Case(
        "hub-gated-not-granted",
        "a gated repository, a token without access",
        (),
        {"HF_TOKEN": "hf_NotGranted12345"},
        model="acme/gated",
    ),
    Case(
        "hub-bad-token",
        "a token that the hub does not know",
        (),
        {"HF_TOKEN": "hf_Revoked1234567"},
        model="acme/llama",
    ),
    Case(
        "hub-unknown-revision",
        "a revision that the repository does not have",
        ("--revision=v9",),
        model="acme/llama",
    ),
    Case(
        "hub-unreachable",
        "nobody listens at the hub's address",
        (),
        {"HF_ENDPOINT": "http://127.0.0.1:9"},
        model="acme/llama",
    ),
    Case("hub-too-many-requests", "the hub asks for patience until huggingface_hub gives up", model="acme/busy"),
    Case("disk-full", "the cache is a disk of 64 KiB", (), {"HF_HOME": "{full}"}, model="acme/llama"),
    Case(
        "cache-not-writable",
        "the cache lies on a disk that is read-only",
        (),
        {"HF_HOME": "{readonly}"},
        model="acme/llama",
    ),
    Case("path-missing", "file:// and pvc:// with a path that is not there", model="/models/nothing/here"),
    Case("path-empty", "a folder without config.json", model="{empty}"),
    Case("weights-missing", "a model without its weights", without=("model.safetensors",)),
    Case("weights-cut", "weights that are cut in half", spoilt=("model.safetensors",)),
    Case(
        "tokenizer-missing",
        "a model without a tokenizer",
        without=("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"),
    ),
    Case("architecture-unknown", "a model type that nobody knows", config=_unknown_architecture),
    Case("architecture-unsupported", "an architecture that vLLM does not have", config=_other_architecture),
    Case("code-of-its-own", "a model that brings its own code", config=_own_code),
    Case("flag-unknown", "a flag that vLLM does not have", ("--max-num-sequences=4",)),
    Case("flag-value", "a flag with a value of the wrong kind", ("--max-num-seqs=many",)),
    Case("flag-choice", "a flag with a value that is no choice", ("--dtype=float99",)),
    Case(
        "speculative-method",
        "a speculative method that vLLM does not have",
        ('--speculative-config={"method":"oracle","num_speculative_tokens":3}',),
    ),
    Case(
        "batched-tokens",
        "settings that contradict each other",
        ("--max-num-batched-tokens=16", "--max-num-seqs=32"),
    ),
    Case("active-seqs", "more active sequences than sequences", ("--max-num-active-seqs=64", "--max-num-seqs=32")),
    Case("tensor-parallel", "3 ways for 2 attention heads", ("--tensor-parallel-size=3",)),
    Case("quantization-unknown", "a quantization that vLLM does not have", ("--quantization=awqq",)),
    Case("quantization-missing", "a quantization that the model does not come in", ("--quantization=awq",)),
    Case("quantization-differs", "another one than the model's own", ("--quantization=gptq",), config=_awq),
    Case(
        "pipeline-parallel",
        "two stages of a model that vLLM has in one piece",
        ("--pipeline-parallel-size=2",),
        config=_without_stages,
    ),
    Case("dtype-float16", "numbers that the model's authors warn of", ("--dtype=float16",), config=_gemma),
    Case("length-too-long", "a maxModelLen beyond the model's own", ("--max-model-len=65536",)),
    Case(
        "kv-cache-too-small",
        "a maxModelLen that the KV cache has no room for",
        ("--max-model-len=16777216",),
        LONG,
    ),
    Case("kv-cache-none", "more KV cache than the machine has memory", (), {"VLLM_CPU_KVCACHE_SPACE": "100000"}),
    Case("memory-limit", "an address space of 3 GB: malloc fails", before=("prlimit", "--as=3500000000")),
    Case(
        "memory-of-kv-cache",
        "an address space that all fits into but the KV cache",
        (),
        {"VLLM_CPU_KVCACHE_SPACE": "4"},
        before=("prlimit", "--as=8000000000"),
    ),
    Case("nixl-missing", "disaggregation without NIXL in the image", (f"--kv-transfer-config={NIXL}",)),
    Case("adapter-missing", "an adapter of a path that is not there", (*LORA, "--lora-modules=sql=/adapters/sql")),
    Case("adapter-empty", "an adapter's folder without its files", (*LORA, "--lora-modules=sql={empty}")),
    Case("adapter-rank", "an adapter of a higher rank than allowed", (*LORA, "--lora-modules=sql={adapter}")),
)


def _refusal(repository: str, token: str, rest: Sequence[str]) -> tuple[int, str, str] | None:
    """Status, code and message of an answer that is none of the model's."""
    place = f"Access to model {repository} is restricted"
    granted = f"{place}. You must have access to it and be authenticated to access it. Please log in."
    listed = f"{place} and you are not in the authorized list. Visit https://huggingface.co/{repository}"
    refusals = (
        (token == "hf_Revoked1234567", (401, "", "Invalid credentials in Authorization header")),
        (repository == "acme/busy", (429, "", "We had to rate limit your IP")),
        (repository == "acme/gated" and token, (403, "GatedRepo", f"{listed} to ask for access.")),
        (repository == "acme/gated", (401, "GatedRepo", granted)),
        (repository != "acme/llama", (401, "RepoNotFound", "Repository not found")),
        ("v9" in rest, (404, "RevisionNotFound", "Invalid rev id: v9")),
    )
    return next((answer for holds, answer in refusals if holds), None)


class Hub(BaseHTTPRequestHandler):
    """huggingface.co for one model, and three that cannot be had."""

    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._serve(body=False)

    def do_GET(self) -> None:
        self._serve(body=True)

    def log_message(self, *_: object) -> None:
        pass

    def _serve(self, *, body: bool) -> None:
        path = self.path.partition("?")[0]
        parts = path.removeprefix("/api/models/").strip("/").split("/")
        repository, rest = "/".join(parts[:2]), parts[2:]
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        refusal = _refusal(repository, token, rest)
        if refusal:
            self._error(*refusal)
        else:
            self._model(path, rest, body=body)

    def _model(self, path: str, rest: list[str], *, body: bool) -> None:
        files = {file.name: file for file in engine_install.model_dir().iterdir()}
        if path.startswith("/api/models/"):
            entries = [
                {"type": "file", "path": name, "size": file.stat().st_size, "oid": COMMIT}
                for name, file in files.items()
            ]
            siblings = [{"rfilename": name} for name in files]
            info = {"_id": "1", "id": "acme/llama", "sha": COMMIT, "siblings": siblings, "tags": []}
            return self._answer(json.dumps(entries if "tree" in rest else info).encode(), {}, body=body)
        name = rest[-1]
        if name not in files:
            return self._error(404, "EntryNotFound", "Entry not found")
        return self._answer(files[name].read_bytes(), {"ETag": f'"{name}"', "X-Repo-Commit": COMMIT}, body=body)

    def _answer(self, content: bytes, headers: Mapping[str, str], *, body: bool) -> None:
        self.send_response(200)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if body:
            self.wfile.write(content)

    def _error(self, status: int, code: str, message: str) -> None:
        self.send_response(status)
        if code:
            self.send_header("X-Error-Code", code)
        self.send_header("X-Error-Message", message)
        self.send_header("Content-Length", "0")
        self.end_headers()


def make(case: Case) -> str:
    """The end of what the engine prints. Fails when it does not end by itself."""
    folder = Path(tempfile.mkdtemp(prefix="enginelog"))
    full = folder / "full"
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        if "{full}" in case.env.values():
            full.mkdir()
            subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(full)], check=True)
        if "{readonly}" in case.env.values():
            full.mkdir()
            subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k,ro", "tmpfs", str(full)], check=True)
        model = case.model or str(_copy(case, folder))
        places = {
            "{empty}": str(folder / "empty"),
            "{full}": str(full),
            "{readonly}": str(full),
            "{adapter}": str(_adapter(folder)),
        }
        (folder / "empty").mkdir()
        return _normal(_run(case, model, places, f"http://127.0.0.1:{server.server_port}", folder), folder)
    finally:
        server.shutdown()
        if full.exists():
            subprocess.run(["umount", str(full)], check=False)
        shutil.rmtree(folder, ignore_errors=True)


def _copy(case: Case, folder: Path) -> Path:
    if not (case.config or case.without or case.spoilt):
        return engine_install.model_dir()
    model = Path(shutil.copytree(engine_install.model_dir(), folder / "model"))
    for name in case.without:
        (model / name).unlink(missing_ok=True)
    for name in case.spoilt:
        content = (model / name).read_bytes()
        (model / name).write_bytes(content[: len(content) // 2])
    if case.config:
        config = json.loads((model / "config.json").read_text())
        case.config(config)
        (model / "config.json").write_text(json.dumps(config))
    return model


def _adapter(folder: Path) -> Path:
    made = folder / "adapter"
    made.mkdir()
    config = {"peft_type": "LORA", "r": 64, "lora_alpha": 64, "target_modules": ["q_proj"], "bias": "none"}
    (made / "adapter_config.json").write_text(json.dumps(config))
    return made


def _run(case: Case, model: str, places: Mapping[str, str], hub: str, folder: Path) -> str:
    def placed(text: str) -> str:
        for name, value in places.items():
            text = text.replace(name, value)
        return text

    python = engine_install.venv_python()
    environment = {
        "PATH": f"{python.parent}:/usr/bin:/bin:/usr/sbin",
        "HOME": str(folder),
        "TMPDIR": str(folder),
        **ENVIRONMENT,
        "HF_ENDPOINT": hub,
        **({"HF_HUB_OFFLINE": "0"} if case.model.startswith("acme/") else {}),
        **{name: placed(value) for name, value in case.env.items()},
    }
    command = [
        *case.before,
        str(python),
        "-m",
        "vllm.entrypoints.openai.api_server",
        f"--model={placed(model)}",
        "--served-model-name=llama",
        "--host=127.0.0.1",
        "--port=8000",
        "--scheduling-policy=priority",
        "--enable-prompt-tokens-details",
        "--enforce-eager",
        *map(placed, case.args),
    ]
    log = folder / "log"
    with log.open("wb") as out:
        child = subprocess.Popen(
            command, stdout=out, stderr=out, env=environment, cwd=folder, start_new_session=True
        )
    try:
        code = child.wait(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        raise SystemExit(f"{case.name}: did not end:\n{log.read_text()[-3000:]}") from None
    finally:
        if child.poll() is None:
            os.killpg(child.pid, 9)
            child.wait()
    assert code != 0, case.name
    return log.read_text(errors="replace")


def _normal(text: str, folder: Path) -> str:
    venv = engine_install.engine_dir() / "venv"
    hidden = (
        (re.escape(str(folder)), "/models"),
        (re.escape(str(engine_install.model_dir())), "/models/tiny"),
        (re.escape(str(venv)), "/opt/venv"),
        (r"\x1b\[[0-9;]*m", ""),
        (r"pid=\d+", "pid=1"),
        (r"(INFO|WARNING|ERROR) \d\d-\d\d \d\d:\d\d:\d\d", r"\1 01-01 00:00:00"),
        (r"http://127\.0\.0\.1:(?!9\b)\d+", "https://huggingface.co"),
        (r"(host='?)?127\.0\.0\.1(', port=|:)(?!8000\b|9\b)\d+", r"\g<1>127.0.0.1\g<2>40000"),
        (r"0x[0-9a-f]{8,}", "0x7f0000000000"),
        (r"\b(Root=1|Request ID: [^;)]*)[-0-9a-f;]*", r"\1"),
    )
    for pattern, name in hidden:
        text = re.sub(pattern, name, text)
    return "\n".join(line.rstrip() for line in text.splitlines()[-LINES:]) + "\n"


def main(names: Sequence[str]) -> None:
    """Make the named logs, or all."""
    engine_install.install()
    for case in CASES:
        if not names or case.name in names:
            print(case.name, flush=True)
            (HERE / f"{case.name}.log").write_text(make(case))


if __name__ == "__main__":
    main(sys.argv[1:])

"""HTTP side of the engine double: routes, journal and small answers, over aiohttp's low-level server."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping

from aiohttp import web

from fakes import generation, metrics, pooling
from fakes.core import EngineCore
from fakes.faults import MID_STREAM, FaultPlan
from fakes.journal import Ending, Journal, Record
from fakes.misbehave import CutError, misbehave
from fakes.replies import model_card, reply
from fakes.requests import BadRequestError, parse_json, unknown_model
from fakes.settings import VLLM_VERSION, EngineSettings
from fakes.text import render_chat, tokenize, words

Handler = Callable[[web.BaseRequest, Record], Awaitable[web.StreamResponse]]
_ADMINISTRATION = (
    "/sleep",
    "/wake_up",
    "/reset_prefix_cache",
    "/collective_rpc",
    "/start_profile",
    "/stop_profile",
)


class Api:
    """Answers requests; `health_status` and `adapters` may be changed by tests at any time."""

    def __init__(self, core: EngineCore, journal: Journal, faults: FaultPlan, changed: Callable[[], None]) -> None:
        self.core = core
        self.settings: EngineSettings = core.settings
        self.journal = journal
        self.faults = faults
        self.health_status = 200
        self.created = int(time.time())
        self.adapters: dict[str, str] = {}  # name -> path
        self.missing_adapters: set[str] = set()  # paths at which there is none
        self.administered: list[str] = []  # administration paths that were called
        self._changed = changed
        self._routes = self._make_routes()

    @property
    def names(self) -> dict[str, str]:
        """Names that requests may carry, and the root of each."""
        return dict.fromkeys(self.settings.served_names, self.settings.model) | self.adapters

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Entry of the server: journal, faults, route."""
        if request.headers.get("expect", "").lower() == "100-continue":
            await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = await request.content.read()
        peer = request.transport.get_extra_info("peername") if request.transport else ("", 0)
        record = Record(request.method, request.path_qs, request.raw_headers, body, peer[:2])
        self.journal.add(record)
        self._changed()
        try:
            return await self._answer(request, record)
        except CutError:
            record.ending = Ending.FAULT
            return web.Response()
        except (asyncio.CancelledError, ConnectionError):
            record.ending = Ending.ABORTED
            raise
        finally:
            self._changed()

    async def _answer(self, request: web.BaseRequest, record: Record) -> web.StreamResponse:
        record.fault = self.faults.take(request.path)
        if record.fault is not None and record.fault.wrong not in MID_STREAM:
            record.ending = Ending.FAULT
            return await misbehave(request, record.fault)
        try:
            methods = self._routes.get(request.path)
            if methods is None or request.method not in methods:
                record.ending = Ending.REFUSED
                return _no_route(methods)
            response = await methods[request.method](request, record)
        except BadRequestError as error:
            record.ending = Ending.REFUSED
            return reply(error.body(request.path), error.status)
        if record.ending is Ending.OPEN:
            record.ending = Ending.ANSWERED
        return response

    def _make_routes(self) -> dict[str, dict[str, Handler]]:
        routes: dict[str, dict[str, Handler]] = {
            **{path: {"POST": self._tokens} for path in generation.APIS},
            **{path: {"POST": self._pooling} for path in pooling.JSON_PATHS},
            **{path: {"POST": self._audio} for path in pooling.FORM_PATHS},
            "/v1/models": {"GET": self._models},
            "/health": {"GET": self._health},
            "/ping": {"GET": self._health, "POST": self._health},
            "/version": {"GET": self._version},
            "/load": {"GET": self._load},
            "/metrics": {"GET": self._metrics},
            "/tokenize": {"POST": self._tokenize},
            "/detokenize": {"POST": self._detokenize},
        }
        if self.settings.runtime_lora:
            routes["/v1/load_lora_adapter"] = {"POST": self._load_adapter}
            routes["/v1/unload_lora_adapter"] = {"POST": self._unload_adapter}
        if self.settings.development_paths:
            routes |= {path: {"POST": self._administer} for path in _ADMINISTRATION}
        return routes

    async def _tokens(self, request: web.BaseRequest, record: Record) -> web.StreamResponse:
        return await generation.answer(self.core, self.names, request, record)

    async def _pooling(self, request: web.BaseRequest, record: Record) -> web.StreamResponse:
        return pooling.answer_json(self.names, request, record)

    async def _audio(self, request: web.BaseRequest, record: Record) -> web.StreamResponse:
        return await pooling.answer_form(self.names, request, record)

    async def _models(self, request: web.BaseRequest, record: Record) -> web.StreamResponse:
        length = self.settings.max_model_len
        cards = [
            model_card(name, self.settings.model, self.created, length) for name in self.settings.served_names
        ]
        cards += [
            model_card(name, path, self.created, length, self.settings.model)
            for name, path in self.adapters.items()
        ]
        return reply({"object": "list", "data": cards})

    async def _health(self, request: web.BaseRequest, record: Record) -> web.StreamResponse:
        return web.Response(status=self.health_status, headers={"server": "uvicorn"})

    async def _version(self, request: web.BaseRequest, record: Record) -> web.StreamResponse:
        return reply({"version": VLLM_VERSION})

    async def _load(self, request: web.BaseRequest, record: Record) -> web.StreamResponse:
        return reply({"server_load": 0})

    async def _metrics(self, request: web.BaseRequest, record: Record) -> web.StreamResponse:
        page = metrics.render(self.core, float(self.created)).encode()
        kind = "text/plain; version=1.0.0; charset=utf-8"
        return web.Response(body=page, headers={"content-type": kind, "server": "uvicorn"})

    async def _tokenize(self, request: web.BaseRequest, record: Record) -> web.StreamResponse:
        value = parse_json(record.body)
        if value.get("model") not in (None, *self.names):
            raise unknown_model(value["model"], self.names)
        text = value["prompt"] if "prompt" in value else render_chat(value.get("messages") or [])
        ids = tokenize(str(text))
        body = {"count": len(ids), "max_model_len": self.settings.max_model_len, "tokens": ids}
        return reply(body | {"token_strs": None})

    async def _detokenize(self, request: web.BaseRequest, record: Record) -> web.StreamResponse:
        value = parse_json(record.body)
        return reply({"prompt": words(0, len(value.get("tokens") or []))})

    async def _load_adapter(self, request: web.BaseRequest, record: Record) -> web.StreamResponse:
        value = parse_json(record.body)
        self.administered.append(request.path)
        name, path = str(value.get("lora_name")), str(value.get("lora_path"))
        if name in self.adapters and not value.get("load_inplace"):
            raise BadRequestError(f"The lora adapter '{name}' has already been loaded.", kind="InvalidUserInput")
        if path in self.missing_adapters:
            words = f"Loading lora {name} failed: No adapter found for {path}"
            raise BadRequestError(words, status=404, kind="NotFoundError")
        self.adapters[name] = path
        return web.Response(text=f"Success: LoRA adapter '{value.get('lora_name')}' added successfully.")

    async def _unload_adapter(self, request: web.BaseRequest, record: Record) -> web.StreamResponse:
        value = parse_json(record.body)
        self.administered.append(request.path)
        self.adapters.pop(str(value.get("lora_name")), None)
        return web.Response(text=f"Success: LoRA adapter '{value.get('lora_name')}' removed successfully.")

    async def _administer(self, request: web.BaseRequest, record: Record) -> web.StreamResponse:
        self.administered.append(request.path)
        return web.Response()


def _no_route(methods: Mapping[str, Handler] | None) -> web.Response:
    """FastAPI's own answers, which vLLM does not translate."""
    if methods is None:
        return reply({"detail": "Not Found"}, 404)
    return reply({"detail": "Method Not Allowed"}, 405, {"allow": ", ".join(methods)})

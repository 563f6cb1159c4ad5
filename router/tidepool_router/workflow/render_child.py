"""The process in which templates are rendered: requests on stdin, texts on stdout, nothing else within reach.

It has no secrets (an empty environment, no open files but the two) and a bound of memory of its own. Who asks
kills it when it takes too long.
"""

import json
import resource
import sys
from collections.abc import Mapping
from typing import Any, Final

from jinja2 import StrictUndefined, TemplateError, nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import SecurityError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tidepool_api.language.templates import GLOBALS
from tidepool_router.workflow.core.texts import as_text

_MEMORY_BYTES: Final = 128 << 20  # beside what the process has when it starts
_LENGTH_BYTES: Final = 4


class _Unfolded(CodeGenerator):
    """Evaluates nothing while it compiles."""

    def _output_child_to_const(self, node: nodes.Expr, frame: Frame, finalize: CodeGenerator._FinalizeInfo) -> str:
        if isinstance(node, nodes.TemplateData):
            return super()._output_child_to_const(node, frame, finalize)
        raise nodes.Impossible


class _Sandbox(ImmutableSandboxedEnvironment):
    """Members of objects before methods: `input.items` is what the client sent."""

    code_generator_class = _Unfolded

    def getattr(self, obj: Any, attribute: str) -> Any:  # noqa: ANN401 - Jinja's own
        """Environment."""
        if isinstance(obj, Mapping) and attribute in obj:
            return obj[attribute]
        return super().getattr(obj, attribute)


def _environment() -> _Sandbox:
    found = _Sandbox(undefined=StrictUndefined, finalize=as_text, optimized=False, keep_trailing_newline=True)
    found.globals = {name: found.globals[name] for name in sorted(GLOBALS)}
    found.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    return found


def _render(environment: _Sandbox, request: Mapping[str, Any], max_bytes: int) -> dict[str, str]:
    try:
        text = environment.from_string(request["template"]).render(request["values"])
    except SecurityError as error:
        return {"error": f"is not allowed: {error}"}
    except TemplateError as error:
        return {"error": str(error)}
    except MemoryError:
        return {"error": "needed more memory than a template may have; make it smaller"}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"[:500]}
    if len(text.encode()) > max_bytes:
        return {"error": f"comes out longer than {max_bytes} bytes"}
    return {"text": text}


def _bound_memory() -> None:
    pages = int(open("/proc/self/statm").read().split()[0])  # noqa: SIM115, PTH123 - once, at the start
    bound = pages * resource.getpagesize() + _MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (bound, bound))


def main(max_bytes: int) -> None:
    """Serve until stdin ends."""
    environment = _environment()
    _render(environment, {"template": "{{ 1 }}", "values": {}}, max_bytes)  # what is imported late comes now
    _bound_memory()
    read, write = sys.stdin.buffer, sys.stdout.buffer
    write.write(b".")
    write.flush()
    while head := read.read(_LENGTH_BYTES):
        request = json.loads(read.read(int.from_bytes(head)))
        answer = json.dumps(_render(environment, request, max_bytes)).encode()
        write.write(len(answer).to_bytes(_LENGTH_BYTES) + answer)
        write.flush()


if __name__ == "__main__":
    main(int(sys.argv[1]))

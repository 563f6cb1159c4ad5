"""The process in which templates are rendered, one request at a time (child_loop.py)."""

import json
import sys
from collections.abc import Mapping
from functools import partial
from typing import Any

from jinja2 import StrictUndefined, TemplateError, nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import SecurityError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tidepool_api.language.templates import GLOBALS
from tidepool_router.workflow.child_loop import serve
from tidepool_router.workflow.core.texts import as_text, size_bytes


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


def _render(environment: _Sandbox, max_bytes: int, request: Mapping[str, Any]) -> dict[str, str]:
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
    if size_bytes(text) > max_bytes:
        return {"error": f"comes out longer than {max_bytes} bytes"}
    return {"text": text}


def main(max_bytes: int) -> None:
    """Serve until stdin ends."""
    render = partial(_render, _environment(), max_bytes)
    render({"template": "{{ 1 }}", "values": {}})  # what is imported late comes now
    serve(render)


if __name__ == "__main__":
    main(int(sys.argv[1]))

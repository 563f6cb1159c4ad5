"""Build hook: the modules on the router's hot path become C extensions, when the environment asks for it.

`TIDEPOOL_COMPILE=1 pip wheel .` compiles what pyproject.toml lists, with mypyc, which reads the types that mypy
checks anyway. Without it, and for editable installs, the wheel is pure Python and does the same, at more CPU.
"""

import ast
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

# Types are checked by `make lint`; here, with fewer packages at hand, only those of the compiled modules count.
_SETTINGS = """\
[mypy]
strict = True
ignore_errors = True
ignore_missing_imports = True
plugins = pydantic.mypy
"""
_COMPILE_SECONDS = 900


class CompileHook(BuildHookInterface[Any]):
    """hatchling's custom hook; raises RuntimeError with the compiler's last lines when it fails."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile in a scratch folder that lives until `finalize`, and put what was made into the wheel."""
        self._scratch: str | None = None
        if version == "editable" or os.environ.get("TIDEPOOL_COMPILE") != "1":
            return
        self._scratch = tempfile.mkdtemp(prefix="tidepool-compile-")
        place = Path(self._scratch)
        for package in self.config["sources"]:
            source = Path(self.root) / package
            shutil.copytree(source, place / source.name, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
        _refuse_strays(place, self.config["modules"])
        _compile(place, self.config["modules"])
        made = [path for path in place.rglob("*.so") if "build" not in path.relative_to(place).parts]
        if not made:
            raise RuntimeError("mypyc made no extensions: look at what it printed")
        build_data["force_include"] |= {str(path): str(path.relative_to(place)) for path in made}
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the scratch folder."""
        del version, build_data, artifact_path
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)


def _compile(place: Path, modules: list[str]) -> None:
    counted = "".join(f"[mypy-{_dotted(module)}]\nignore_errors = False\n" for module in modules)
    (place / "mypy.ini").write_text(_SETTINGS + counted)
    command = [sys.executable, "-m", "mypyc", *modules]
    environment = os.environ | {"MYPYC_OPT_LEVEL": "2", "MYPYC_DEBUG_LEVEL": "0"}
    done = subprocess.run(  # noqa: S603 - fixed words, and module names from pyproject.toml
        command, cwd=place, env=environment, capture_output=True, text=True, timeout=_COMPILE_SECONDS, check=False
    )
    if done.returncode:
        said = "\n".join((done.stdout + done.stderr).splitlines()[-40:])
        raise RuntimeError(f"mypyc failed; it needs a C compiler and Python's headers (gcc, python3-dev):\n{said}")


def _dotted(module: str) -> str:
    return module.removesuffix(".py").replace("/", ".")


def _refuse_strays(place: Path, modules: list[str]) -> None:
    """An interpreted class cannot extend a compiled one: say it now, not when the class is made for a request."""
    names = {node.name for module in modules for node in _classes(place / module)}
    for path in sorted(place.rglob("*.py")):
        if str(path.relative_to(place)) in modules:
            continue
        for node in _classes(path):
            for base in node.bases:
                if isinstance(base, ast.Name) and base.id in names:
                    where = path.relative_to(place)
                    why = f"{node.name} extends {base.id}, which is compiled"
                    raise RuntimeError(f"{where}: {why}; list {where} in pyproject.toml too")


def _classes(path: Path) -> list[ast.ClassDef]:
    return [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef)]

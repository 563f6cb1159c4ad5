"""Which files of a model an engine needs. PURE: names in, names out."""

import re
from collections.abc import Iterable
from typing import Final

from tidepool_router.loading.errors import FilesBrokenError

_SAFE: Final = ".safetensors"
# Weights in formats that vLLM does not take where safetensors are there, and files of other runtimes.
_OTHER_WEIGHTS: Final = re.compile(r"\.(bin|pt|pth|ckpt|h5|msgpack|ot)$")
_NEVER: Final = re.compile(
    r"(^|/)(\.git|\.cache|\.tidepool)(/|$)|^original/|^(onnx|openvino|coreml)/|\.(onnx|tflite|mlmodel)$"
)


def needed(names: Iterable[str]) -> list[str]:
    """Those of a model's files that are worth their bytes, sorted.

    Raises FilesBrokenError for a name that leads out of the folder.
    """
    found = sorted(set(names))
    for name in found:
        if name.startswith("/") or ".." in name.split("/") or "\\" in name or "\0" in name:
            raise FilesBrokenError(f"{name!r} is no name of a file below a folder")
    safe = any(name.endswith(_SAFE) for name in found)
    return [name for name in found if not _NEVER.search(name) and not (safe and _OTHER_WEIGHTS.search(name))]

"""Texts with a shape of their own: addresses and names of models, images, names of variables."""

import re
from typing import Annotated, Final

from pydantic import AfterValidator, Field

from tidepool_api.kube import Rule, matching, patterned

URI_PATTERN: Final = (
    r"^(hf://[^/\s]+/[^/\s]+|pvc://[a-z0-9][-.a-z0-9]*(/\S*)?|file:///\S+|"
    r"(s3|gs)://[A-Za-z0-9][-._A-Za-z0-9]+(/\S*)?|oci://[^\s/#]+/[^\s#]+(#\S+)?)$"
)
URI: Final = matching(
    URI_PATTERN,
    "is not a model address; write hf://owner/name, s3://bucket/path, gs://bucket/path, oci://registry/image:tag, "
    "pvc://claim/path or file:///path",
)
SERVED_NAME_PATTERN: Final = r"^[A-Za-z0-9][-A-Za-z0-9._:/]*$"
SERVED_NAME: Final = matching(
    SERVED_NAME_PATTERN,
    "is not a model's name; use letters, digits and . _ : / - and begin with a letter or digit",
)
REVISION_PATTERN: Final = r"^[A-Za-z0-9][-A-Za-z0-9._/]*$"
REVISION_NAME: Final = matching(
    REVISION_PATTERN, "is not a revision; write a branch, a tag or a commit such as 0e9e39f"
)
WORD_PATTERN: Final = r"^[A-Za-z0-9_-]+$"
WORD: Final = matching(WORD_PATTERN, "is not a word; use letters, digits, _ and -")
ENV_NAME_PATTERN: Final = r"^[A-Za-z_][A-Za-z0-9_]*$"
ENV_NAME: Final = matching(
    ENV_NAME_PATTERN, "is not the name of an environment variable; use letters, digits and _, no digit first"
)
IMAGE_PATTERN: Final = r"^[^\s-]\S*$"
IMAGE: Final = matching(IMAGE_PATTERN, "is not an image; write it like vllm/vllm-openai:v0.32.0")


ModelUri = Annotated[
    str,
    Field(min_length=1, max_length=1024, json_schema_extra=patterned(URI_PATTERN, URI)),
    AfterValidator(URI.check),
]
ServedName = Annotated[
    str,
    Field(min_length=1, max_length=253, json_schema_extra=patterned(SERVED_NAME_PATTERN, SERVED_NAME)),
    AfterValidator(SERVED_NAME.check),
]
Revision = Annotated[
    str,
    Field(min_length=1, max_length=253, json_schema_extra=patterned(REVISION_PATTERN, REVISION_NAME)),
    AfterValidator(REVISION_NAME.check),
]
# A method or scheme, as vLLM names it.
Word = Annotated[
    str,
    Field(min_length=1, max_length=63, json_schema_extra=patterned(WORD_PATTERN, WORD)),
    AfterValidator(WORD.check),
]
EnvName = Annotated[
    str,
    Field(min_length=1, max_length=253, json_schema_extra=patterned(ENV_NAME_PATTERN, ENV_NAME)),
    AfterValidator(ENV_NAME.check),
]
Image = Annotated[
    str,
    Field(min_length=1, max_length=512, json_schema_extra=patterned(IMAGE_PATTERN, IMAGE)),
    AfterValidator(IMAGE.check),
]
HOST_PATH_PATTERN: Final = r"^/([A-Za-z0-9_@-]|[A-Za-z0-9_@./-]*[A-Za-z0-9_@-])$"
HOST_PATH: Final = Rule(
    f"self.matches(r'{HOST_PATH_PATTERN}') && !self.contains('..')",
    "is not a folder of the node; write an absolute path without .. such as /var/cache/models",
    holds=lambda path: re.fullmatch(HOST_PATH_PATTERN, path) is not None and ".." not in path,
)
HostPath = Annotated[
    str,
    Field(min_length=2, max_length=512, json_schema_extra=patterned(HOST_PATH_PATTERN, HOST_PATH)),
    AfterValidator(HOST_PATH.check),
]
SecretOrMapKey = Annotated[str, Field(min_length=1, max_length=253)]

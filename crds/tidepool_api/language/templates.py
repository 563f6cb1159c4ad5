"""Templates of a workflow: compiled in Jinja's sandbox, never rendered, and what they refer to.

Compiling must stay cheap whatever the text says. Jinja evaluates constant expressions while it compiles
(`{{ "x"|center(10**10) }}` would take ten gigabytes): in its optimizer, in the output of expressions, and again in
`meta.find_undeclared_variables`. So the code generator here folds nothing and finds the variables itself.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from jinja2 import Environment, TemplateError, TemplateSyntaxError, meta, nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.idtracking import VAR_LOAD_RESOLVE
from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_CHARACTERS: Final = 32_768  # as the CRD bounds the fields
# Of Jinja's own globals, without lipsum: filler text is no use here and costs time.
GLOBALS: Final = frozenset({"range", "dict", "cycler", "joiner", "namespace"})


class _Reader(CodeGenerator):
    """Writes a template's Python code, folds nothing, and notes the variables that the code looks up."""

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment, name=None, filename=None, optimized=False)
        self.roots: set[str] = set()

    def enter_frame(self, frame: Frame) -> None:
        super().enter_frame(frame)
        looked_up = (name for action, name in frame.symbols.loads.values() if action == VAR_LOAD_RESOLVE)
        self.roots.update(name for name in looked_up if name and name not in self.environment.globals)

    def _output_child_to_const(self, node: nodes.Expr, frame: Frame, finalize: CodeGenerator._FinalizeInfo) -> str:
        if isinstance(node, nodes.TemplateData):
            return super()._output_child_to_const(node, frame, finalize)
        raise nodes.Impossible

    def code(self) -> str:
        return self.stream.getvalue()  # type: ignore[no-any-return, attr-defined]


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment()
    environment.globals = {name: environment.globals[name] for name in sorted(GLOBALS)}
    return environment


_ENVIRONMENT: Final = _environment()


@dataclass(frozen=True, slots=True)
class References:
    """What a template reads: variables at the top, names under `steps`, `input` and `pick`.

    `whole_steps`: reads `steps` other than by a constant name, so that nobody can tell which.
    """

    roots: frozenset[str]
    steps: frozenset[str]
    inputs: frozenset[str]
    whole_steps: bool
    picks: frozenset[str] = frozenset()


class BrokenTemplateError(ValueError):
    """The text does not compile; the message names the line."""


def is_template(text: str) -> bool:
    """Whether the text holds an expression or a statement, or is plain."""
    return "{{" in text or "{%" in text


def inspect(text: str) -> References:
    """What the template refers to.

    Raises BrokenTemplateError when it does not compile, is too long, or wants to load another template.
    """
    if len(text) > MAX_CHARACTERS:
        raise BrokenTemplateError(f"the template is longer than {MAX_CHARACTERS} characters")
    try:
        tree = _ENVIRONMENT.parse(text)
        reader = _Reader(_ENVIRONMENT)
        reader.visit(tree)
        compile(reader.code(), "<template>", "exec")
    except TemplateSyntaxError as error:
        raise BrokenTemplateError(f"line {error.lineno}: {error.message}") from error
    except TemplateError as error:
        raise BrokenTemplateError(str(error)) from error
    except (RecursionError, MemoryError, SyntaxError, ValueError, OverflowError) as error:
        # Python's own limits, met by the code that Jinja wrote: too deep, or a number too long.
        raise BrokenTemplateError("the template is nested too deeply or holds too large a number") from error
    if next(meta.find_referenced_templates(tree), "none") != "none":
        raise BrokenTemplateError("include, import and extends are not available: there are no other templates")
    return _references(tree, frozenset(reader.roots))


def _references(tree: nodes.Template, roots: frozenset[str]) -> References:
    steps = [name for name in _members(tree, "steps") if "steps" in roots]
    uses = sum(1 for name in tree.find_all(nodes.Name) if name.name == "steps")
    inputs = frozenset(_members(tree, "input")) if "input" in roots else frozenset()
    picks = frozenset(_members(tree, "pick")) if "pick" in roots else frozenset()
    return References(roots, frozenset(steps), inputs, "steps" in roots and uses > len(steps), picks)


def _members(tree: nodes.Template, root: str) -> Iterator[str]:
    """`b` of each `root.b` and `root['b']`."""
    for node in tree.find_all(nodes.Getattr):
        if isinstance(node.node, nodes.Name) and node.node.name == root:
            yield node.attr
    for item in tree.find_all(nodes.Getitem):
        key = item.arg.value if isinstance(item.arg, nodes.Const) else None
        if isinstance(item.node, nodes.Name) and item.node.name == root and isinstance(key, str):
            yield key

"""`tidepool`, `kubectl tidepool`, and the completion that kubectl asks for."""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from tidepool_cli import completion, explain, fleet, options
from tidepool_cli.errors import CliError
from tidepool_cli.kubectl import Kubectl
from tidepool_cli.tables import Paint, plain

_POOLS: Final = "modelpools.tidepool.dev"
_LABEL: Final = "tidepool.dev/pool"
_LEAST_INTERVAL_SECONDS: Final = 0.5
_CLEAR: Final = "\x1b[H\x1b[2J\x1b[3J"


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: see options.EXIT_CODES."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    program = "kubectl tidepool" if Path(sys.argv[0]).name == "kubectl-tidepool" else "tidepool"
    try:
        if given[:1] == ["__complete"]:
            return complete(given[1:])
        if given[:1] and given[0] in _ELSEWHERE:
            return _ELSEWHERE[given[0]](given[1:])
        parsed = options.parser(program).parse_args(given)
        return _COMMANDS[parsed.command](parsed)
    except CliError as error:
        sys.stderr.write(f"{program}: {error}\n")
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # `| head` has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def complete(typed: Sequence[str] | None = None) -> int:
    """One candidate a line; silent where the cluster does not answer."""
    asked = sys.argv[1:] if typed is None else typed
    found = options.candidates(options.parser("tidepool"), asked)
    if isinstance(found, str):
        try:
            names = [each["metadata"]["name"] for each in Kubectl().list(found)]
        except CliError:
            names = []
        found = [name for name in names if name.startswith(asked[-1])]
    sys.stdout.write("".join(f"{each}\n" for each in found))
    return 0


def complete_for_kubectl() -> int:
    """kubectl asks `kubectl_complete-tidepool`, and wants cobra's directive after the candidates: no files."""
    complete()
    sys.stdout.write(":4\n")
    return 0


def _cluster(parsed: argparse.Namespace) -> Kubectl:
    chosen = ((name, getattr(parsed, name)) for name in ("namespace", "context", "kubeconfig"))
    return Kubectl([f"--{name}={value}" for name, value in chosen if value])


def _paint() -> Paint:
    return Paint(on=sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb")


def _print_json(found: object) -> None:
    sys.stdout.write(json.dumps(found, indent=2) + "\n")


def _top(parsed: argparse.Namespace) -> int:
    cluster = _cluster(parsed)
    live = sys.stdout.isatty() and not parsed.once and parsed.output == "text"
    while True:
        found = fleet.rows(cluster.list(_POOLS, everywhere=parsed.all_namespaces))
        now = datetime.now(UTC)
        if parsed.output == "json":
            _print_json(found)
            return 0
        told = fleet.text(found, now)
        if not live:
            sys.stdout.write(f"{told}\n")
            return 0
        sys.stdout.write(f"{_CLEAR}{now:%H:%M:%S}  {len(found)} pools, Ctrl-C ends\n\n{told}\n")
        sys.stdout.flush()
        time.sleep(max(_LEAST_INTERVAL_SECONDS, parsed.interval))


def _explain(parsed: argparse.Namespace) -> int:
    cluster = _cluster(parsed)
    pool = cluster.get(_POOLS, parsed.pool)
    pods = cluster.list("pods", selector=f"{_LABEL}={parsed.pool}")
    events = cluster.list("events", fields=f"involvedObject.kind=ModelPool,involvedObject.name={parsed.pool}")
    found = explain.view(pool, pods, events)
    if parsed.output == "json":
        _print_json(found.as_json())
    else:
        sys.stdout.write(explain.text(found, datetime.now(UTC), _paint()) + "\n")
    return 0


def _diagnose(parsed: argparse.Namespace) -> int:
    from tidepool_cli import bundle

    now = datetime.now(UTC)
    folder = f"tidepool-{parsed.pool}-{now:%Y%m%dT%H%M%SZ}"
    path = parsed.file or Path(f"{folder}.tar.gz")
    files = bundle.collect(_cluster(parsed), parsed.pool, now, lambda name: _tell(f"reading {name}"))
    bundle.write(files, path, folder, now)
    missing = sorted(name for name in files if name.endswith(".missing.txt"))
    if parsed.output == "json":
        _print_json({"file": str(path), "files": sorted(files), "missing": missing})
        return 0
    sys.stdout.write(
        f"wrote {path}: {len(files)} files; values of environment and arguments that may be secret are hidden, "
        "and lines of logs that may quote a request are left out. Look into it before you send it on.\n"
    )
    return 0


def _route(parsed: argparse.Namespace) -> int:
    from tidepool_cli import asking

    found = asking.route(parsed.url, parsed.model, asking.read(parsed.prompt_file))
    if parsed.output == "json":
        _print_json(found.as_json())
    else:
        sys.stdout.write(found.text() + "\n")
    return 0


def _run(parsed: argparse.Namespace) -> int:
    from tidepool_cli import running

    cluster = _cluster(parsed)
    given = running.parsed_input(parsed.input, parsed.input_file)
    cluster.get("agentworkflows.tidepool.dev", parsed.workflow)  # a run of one that is not there would wait
    name = cluster.create(running.order(parsed.workflow, given))["metadata"]["name"]
    _tell(f"run {name} begins")
    if parsed.no_wait:
        if parsed.output == "json":
            _print_json({"name": name})
        else:
            sys.stdout.write(f"{name}\n")
        return 0
    run = running.wait(cluster, name, parsed.timeout, _tell)
    status = run["status"]
    if parsed.output == "json":
        _print_json(run)
    elif status["phase"] == "Succeeded":
        output = str(status.get("output", ""))
        # A model wrote it: a file gets it as it is, and a terminal nothing that it would obey.
        sys.stdout.write(f"{plain(output) if sys.stdout.isatty() else output}\n")
    return 0 if status["phase"] == "Succeeded" else 1


def _validate(parsed: argparse.Namespace) -> int:
    from tidepool_cli import validate

    checked = validate.check([validate.read(path) for path in parsed.files], parsed.pool)
    if parsed.output == "json":
        told = [{name: getattr(each, name) for name in each.__slots__} for each in checked.findings]
        _print_json({"findings": told, "objects": checked.objects, "skipped": checked.skipped})
    else:
        sys.stdout.write("".join(f"{each}\n" for each in checked.findings))
        skipped = f"; {checked.skipped} of other kinds were not looked at" if checked.skipped else ""
        verdict = f"{len(checked.findings)} mistakes" if checked.findings else "sound"
        _tell(f"{checked.objects} objects: {verdict}{skipped}")
    return 1 if checked.findings else 0


def _usage(parsed: argparse.Namespace) -> int:
    asked = ["--since", parsed.since, "--by", parsed.by, "--output", parsed.output]
    asked += ["--until", parsed.until] if parsed.until else []
    command = ["tidepool-router", "usage", *asked]
    sys.stdout.write(_cluster(parsed).execute(f"deploy/{parsed.gateway}", command))
    return 0


def _completion(parsed: argparse.Namespace) -> int:
    sys.stdout.write(completion.SCRIPTS[parsed.shell])
    return 0


def _tell(line: str) -> None:
    """Progress: not the answer, so not on standard output."""
    sys.stderr.write(f"{line}\n")


def _backtest(arguments: Sequence[str]) -> int:
    try:
        from tidepool_operator.backtest.command import main as backtest
    except ImportError as error:
        raise CliError(
            "backtest plays the operator's own policy; install it: pip install '.[operator]' in its clone"
        ) from error
    return backtest(arguments)


def _drawn(command: str) -> Callable[[Sequence[str]], int]:
    def draw(arguments: Sequence[str]) -> int:
        try:
            from tidepool_router import workflow_command
        except ImportError as error:
            raise CliError(
                f"{command} draws as the router does; install it: pip install '.[router]' in its clone"
            ) from error
        return workflow_command.run([command, *arguments])

    return draw


# Commands of other programs, with their own options.
_ELSEWHERE: Final[dict[str, Callable[[Sequence[str]], int]]] = {
    "backtest": _backtest,
    "trace": _drawn("trace"),
    "graph": _drawn("graph"),
}
_COMMANDS: Final[dict[str, Callable[[argparse.Namespace], int]]] = {
    "top": _top,
    "explain": _explain,
    "diagnose": _diagnose,
    "route": _route,
    "run": _run,
    "usage": _usage,
    "validate": _validate,
    "completion": _completion,
}


if __name__ == "__main__":
    sys.exit(main())

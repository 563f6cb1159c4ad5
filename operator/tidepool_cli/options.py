"""The command line: names, options and their help, and what shells complete of it. Pure."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Final

GATEWAY: Final = "http://127.0.0.1:8080"
EXIT_CODES: Final = (
    "Exit status: 0 done; 1 the answer is no (a file has mistakes, a run failed); 2 it could not be done, and the "
    "message says why and what to do. kubectl is asked for all that the cluster knows."
)
SHELLS: Final = ("bash", "zsh", "fish")
# Commands whose first word is a name in the cluster, and of what.
NAMES: Final = {
    "explain": "modelpools.tidepool.dev",
    "diagnose": "modelpools.tidepool.dev",
    "run": "agentworkflows.tidepool.dev",
}


def parser(program: str) -> argparse.ArgumentParser:
    """The whole command line."""
    made = argparse.ArgumentParser(
        prog=program, description="Ask a cluster about its inference pools.", epilog=EXIT_CODES
    )
    commands = made.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _cluster(_top(commands))
    _cluster(_pool(commands, "explain", "why a pool has so many replicas, why it is not Ready, and what to do"))
    diagnose = _cluster(_pool(commands, "diagnose", "a support bundle of a pool, without secrets or prompts"))
    diagnose.add_argument("--file", type=Path, help="where to write it (default: tidepool-POOL-TIME.tar.gz)")
    _route(commands)
    _run(commands)
    _validate(commands)
    commands.add_parser(
        "trace", add_help=False, help="draw a run in time: options of `tidepool-router workflow trace`"
    )
    commands.add_parser(
        "graph", add_help=False, help="draw a workflow: options of `tidepool-router workflow graph`"
    )
    commands.add_parser(
        "backtest", add_help=False, help="play a pool's past: options of `tidepool-operator backtest`"
    )
    _usage(commands)
    completion = commands.add_parser("completion", help="print the completion of a shell")
    completion.add_argument("shell", choices=SHELLS)
    return made


def _cluster(command: argparse.ArgumentParser) -> argparse.ArgumentParser:
    command.add_argument("-n", "--namespace", help="namespace (default: that of the context)")
    command.add_argument("--context", help="context of the kubeconfig")
    command.add_argument("--kubeconfig", help="kubeconfig file")
    return _output(command)


def _output(command: argparse.ArgumentParser) -> argparse.ArgumentParser:
    command.add_argument("-o", "--output", choices=("text", "json"), default="text", help="json is for machines")
    return command


def _top(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> argparse.ArgumentParser:
    top = commands.add_parser("top", help="all pools, live")
    top.add_argument("-A", "--all-namespaces", action="store_true", help="of all namespaces")
    top.add_argument(
        "--once", action="store_true", help="print once and end; so it is where the output is no terminal"
    )
    top.add_argument("--interval", type=float, default=2.0, help="seconds between two looks (default %(default)s)")
    return top


def _pool(
    commands: "argparse._SubParsersAction[argparse.ArgumentParser]",
    name: str,
    what: str,
) -> argparse.ArgumentParser:
    command = commands.add_parser(name, help=what, description=what)
    command.add_argument("pool", help="name of the ModelPool")
    return command


def _route(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    what = "which pod gets a prompt, and why: asks the gateway for one token"
    command = _output(commands.add_parser("route", help=what, description=what))
    command.add_argument("--model", required=True, help="model, as a client names it")
    command.add_argument("--prompt-file", type=Path, required=True, help="file with the prompt")
    command.add_argument("--url", default=GATEWAY, help="the gateway (default %(default)s)")


def _run(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    command = _cluster(commands.add_parser("run", help="run a workflow and wait for its answer"))
    command.add_argument("workflow", help="name of the AgentWorkflow")
    given = command.add_mutually_exclusive_group()
    given.add_argument("--input", help="input, as a JSON object")
    given.add_argument("--input-file", type=Path, help="file with it")
    command.add_argument("--no-wait", action="store_true", help="begin it, print its name and end")
    command.add_argument(
        "--timeout", type=float, default=600.0, help="seconds to wait at most (default %(default)s)"
    )


def _usage(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    what = "who used how much, as the gateways keep it"
    command = commands.add_parser("usage", help=what, description=what)
    command.add_argument("-n", "--namespace", help="namespace of the gateway")
    command.add_argument("--context", help="context of the kubeconfig")
    command.add_argument("--kubeconfig", help="kubeconfig file")
    command.add_argument("--gateway", default="tidepool-gateway", help="its Deployment (default %(default)s)")
    command.add_argument("--since", default="30d", help="30d, 12h or 2026-11-01, in UTC (default %(default)s)")
    command.add_argument("--until", help="the same (default: now)")
    command.add_argument("--by", default="key,tenant,model", help="of day, hour, key, tenant, model, workflow")
    command.add_argument(
        "-o", "--output", choices=("text", "csv", "json"), default="text", help="csv is for billing"
    )


def _validate(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    what = "hold files against the rules of the cluster, without one"
    command = _output(commands.add_parser("validate", help=what, description=what))
    command.add_argument("files", type=Path, nargs="+", metavar="FILE", help="YAML or JSON")
    command.add_argument("--pool", action="append", default=[], help="a pool that is in the cluster already")


def words(made: argparse.ArgumentParser) -> dict[str, list[str]]:
    """Command to its long options; those of `trace`, `graph` and `backtest` are the other programs'."""
    found = {}
    for action in made._actions:  # noqa: SLF001 - argparse has no other way to ask
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            for name, command in action.choices.items():
                options = [option for each in command._actions for option in each.option_strings]  # noqa: SLF001
                found[name] = [option for option in options if option.startswith("--")]
    return found


def candidates(made: argparse.ArgumentParser, typed: Sequence[str]) -> list[str] | str:
    """What may stand where the last word of `typed` is; text: the names of that resource in the cluster."""
    known = words(made)
    begun = typed[-1] if typed else ""
    if len(typed) <= 1:
        return [name for name in known if name.startswith(begun)]
    command = typed[0]
    if begun.startswith("-"):
        return [option for option in known.get(command, []) if option.startswith(begun)]
    if command == "completion":
        return [shell for shell in SHELLS if shell.startswith(begun)]
    return NAMES.get(command, []) if len(typed) == 2 else []

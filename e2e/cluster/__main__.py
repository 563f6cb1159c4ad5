"""`python3 -m cluster VERB`: the real Kubernetes that the tests and the demo run on."""

import argparse
import sys
from collections.abc import Callable

from cluster import lifecycle, tools
from cluster.errors import ClusterError


def _tools(options: argparse.Namespace) -> int:
    print(tools.build(options.names))
    return 0


def _up(_: argparse.Namespace) -> int:
    _print_status(lifecycle.up())
    return 0


def _down(_: argparse.Namespace) -> int:
    lifecycle.down()
    return 0


def _status(_: argparse.Namespace) -> int:
    found = lifecycle.status()
    _print_status(found)
    return 0 if found.healthy else 1


def _print_status(found: lifecycle.Status) -> None:
    if not found.exists:
        print("no cluster; make one with: python3 -m cluster up")
        return
    for program, runs in found.programs.items():
        print(f"{program:45} {'runs' if runs else 'DOWN'}")
    print(f"{'API server':45} {'ready' if found.api_ready else 'NOT READY'}")
    print(f"{'nodes Ready':45} {', '.join(found.nodes_ready) or 'NONE'}")
    print(f"{'Prometheus':45} {'ready' if found.prometheus else 'DOWN'}  {found.prometheus_url}")
    print(f"export KUBECONFIG={found.kubeconfig}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python3 -m cluster", description=__doc__)
    verbs = parser.add_subparsers(required=True, metavar="VERB")

    def verb(name: str, run: Callable[[argparse.Namespace], int], text: str) -> argparse.ArgumentParser:
        made = verbs.add_parser(name, help=text, description=text)
        made.set_defaults(run=run)
        return made

    verb("tools", _tools, "Build the programs into the cache; print their folder").add_argument(
        "names", nargs="*", metavar="NAME"
    )
    verb("up", _up, "Make the cluster, or repair what is there")
    verb("down", _down, "Remove every trace of the cluster; the cache stays")
    verb("status", _status, "Say what stands; exit 1 unless all of it does")
    return parser


def main(arguments: list[str]) -> int:
    """Run one verb; returns the exit status."""
    options = _parser().parse_args(arguments)
    try:
        status: int = options.run(options)
    except ClusterError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

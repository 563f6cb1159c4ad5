"""`python3 -m cluster VERB`: the real Kubernetes that the tests and the demo run on."""

import argparse
import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path

from cluster import engine_install, images, lifecycle, loading, preparing, prometheus, requirements, tools, volumes
from cluster.errors import ClusterError
from cluster.kubernetes import Kubectl
from cluster.plane import kubeconfig


def _tools(options: argparse.Namespace) -> int:
    print(tools.build(options.names))
    return 0


def _check(_: argparse.Namespace) -> int:
    requirements.check()
    print("this machine can hold the cluster")
    return 0


def _prepare(_: argparse.Namespace) -> int:
    requirements.check()
    preparing.prepare()
    return 0


def _up(_: argparse.Namespace) -> int:
    requirements.check()
    _print_status(lifecycle.up())
    return 0


def _down(_: argparse.Namespace) -> int:
    lifecycle.down()
    return 0


def _status(options: argparse.Namespace) -> int:
    found = lifecycle.status()
    if options.json:
        print(json.dumps(dataclasses.asdict(found) | {"healthy": found.healthy}, indent=2))
    else:
        _print_status(found)
    return 0 if found.healthy else 1


def _images(options: argparse.Namespace) -> int:
    for reference in loading.load(options.names or list(images.PROJECT)):
        print(reference)
    return 0


def _engine(_: argparse.Namespace) -> int:
    print(engine_install.install())
    return 0


def _engine_volume(options: argparse.Namespace) -> int:
    engine_install.install()
    layout, _, _ = lifecycle.require()
    volumes.ensure(Kubectl(kubeconfig(layout)), options.namespace)
    model = f"{volumes.MOUNT_PATH}/{engine_install.MODEL_LINK}"
    print(f"claim {volumes.CLAIM} in {options.namespace}; mount it at {volumes.MOUNT_PATH}; the model is {model}")
    return 0


def _shared_volume(options: argparse.Namespace) -> int:
    layout, _, _ = lifecycle.require()
    print(volumes.ensure_shared(Kubectl(kubeconfig(layout)), options.namespace, options.claim))
    return 0


def _prometheus(options: argparse.Namespace) -> int:
    layout, machine, _ = lifecycle.require()
    if options.rules is not None:
        prometheus.set_rules(layout, options.rules)
    if options.action in ("stop", "restart"):
        prometheus.stop(machine)
    if options.action in ("start", "restart"):
        prometheus.ensure(layout, machine)
    if options.action == "reload":
        prometheus.reload(layout, machine)
    print(layout.prometheus_url)
    return 0


def _print_status(found: lifecycle.Status) -> None:
    if not found.exists:
        print("no cluster; make one with: python3 -m cluster up")
        return
    for program, pid in found.programs.items():
        print(f"{program:45} {f'runs ({pid})' if pid else 'DOWN'}")
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
    verb("check", _check, "Say whether this machine can hold the cluster")
    verb("prepare", _prepare, "Fill the cache with all that takes long: programs, images, engine")
    verb("up", _up, "Make the cluster, or repair what is there")
    verb("down", _down, "Remove every trace of the cluster; the cache stays")
    verb("status", _status, "Say what stands; exit 1 unless all of it does").add_argument(
        "--json", action="store_true", help="for programs: also process ids, KUBECONFIG and addresses"
    )
    verb("images", _images, "Build the project's images and load them into the nodes").add_argument(
        "names", nargs="*", metavar="NAME", help=f"of {', '.join(images.ALL)}; without names the project's own"
    )
    verb("engine", _engine, "Install the engine and make its model in the cache; print their folder")
    verb("engine-volume", _engine_volume, "Give a namespace the claim of engine and model").add_argument(
        "--namespace", required=True
    )
    shared = verb("shared-volume", _shared_volume, "Give a namespace a claim to write to; print its folder")
    shared.add_argument("--namespace", required=True)
    shared.add_argument("--claim", required=True)
    made = verb("prometheus", _prometheus, "Start, stop, restart or reload Prometheus")
    made.add_argument("action", choices=("start", "stop", "restart", "reload"))
    made.add_argument("--rules", type=Path, help="a rules file to check and load")
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

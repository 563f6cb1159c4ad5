"""The project's images in the nodes of the running cluster."""

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from cluster import configs, images, lifecycle, node
from cluster.console import say
from cluster.errors import ClusterError
from cluster.machine import Machine


def load(names: Sequence[str]) -> list[str]:
    """Build the images whose sources changed and load them into every node; returns their references.

    Raises ClusterError on an unknown name, without a cluster, or when a build fails.
    """
    unknown = [name for name in names if name not in images.ALL]
    if unknown:
        raise ClusterError(f"no such image: {', '.join(unknown)}; there are: {', '.join(images.ALL)}")
    _, _, nodes = lifecycle.require()
    references = []
    for name in names:
        reference, archive = images.project_archive(name)
        _import_everywhere(nodes, reference, archive)
        references.append(reference)
    for machine in nodes:
        forget_older(machine, names)
    return references


def _import_everywhere(nodes: Sequence[Machine], reference: str, archive: Path) -> None:
    with ThreadPoolExecutor(len(nodes)) as pool:
        # list() raises what a thread raised.
        list(pool.map(lambda machine: node.import_image(machine, reference, archive), nodes))


def outdated(
    on_node: Iterable[str], in_use: Iterable[str], names: Iterable[str], kept: Iterable[str]
) -> list[str]:
    """References of the project's images on a node that no container uses and the cache has forgotten."""
    prefixes = tuple(f"localhost/{name}:" for name in names)
    return sorted({one for one in on_node if one.startswith(prefixes)} - set(in_use) - set(kept))


def forget_older(machine: Machine, names: Sequence[str]) -> None:
    """Remove what `outdated` names: a long-lived cluster would fill its disk with every edit."""
    in_use = [
        line.split()[1]
        for line in machine.run(*configs.ctr_command("containers", "list")).splitlines()[1:]
        if len(line.split()) > 1
    ]
    old = outdated(node.image_names(machine), in_use, names, images.kept_references())
    if old:
        machine.run(*configs.ctr_command("images", "remove", *old))
        say(f"{machine.name}: removed {len(old)} older images")

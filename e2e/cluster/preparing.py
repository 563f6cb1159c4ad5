"""Everything that can be made before there is a cluster, at the same time where that saves time."""

from concurrent.futures import ThreadPoolExecutor

from cluster import chromium, debian, engine_install, images, postgres, tools


def prepare() -> None:
    """Fill the cache: programs, base images, engine and model. Quick when all is there. Raises ClusterError.

    Building programs keeps the processors busy and the other two mostly the network, so they go side by side.
    """
    debian.install({**debian.NETWORK_AND_NODES, **debian.IMAGES})
    with ThreadPoolExecutor(2) as pool:
        downloads, programs = pool.submit(_downloads), pool.submit(tools.build)
        downloads.result()
        programs.result()


def _downloads() -> None:
    engine_install.install()
    postgres.programs()
    chromium.environment()
    images.pause_archive()
    images.base_archive()

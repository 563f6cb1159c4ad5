"""`python3 -m cluster VERB`: the real Kubernetes that the tests and the demo run on."""

import sys

from cluster import tools
from cluster.errors import ClusterError


def main(arguments: list[str]) -> int:
    """Run one verb; returns the exit status."""
    try:
        if arguments[:1] == ["tools"]:
            print(tools.build(arguments[1:]))
            return 0
    except ClusterError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""What can go wrong with the cluster; every text says what to do."""


class ClusterError(Exception):
    """The root: `python3 -m cluster` prints it without a traceback and exits with 1."""


class CommandFailed(ClusterError):
    """A command that the cluster needs ended badly; the text carries its last words."""


class TimedOut(ClusterError):
    """A condition did not come true in the time that was allowed for it."""


class ToolsError(ClusterError):
    """A program of the cluster cannot be built."""


class Unsuitable(ClusterError):
    """This machine cannot hold the cluster."""

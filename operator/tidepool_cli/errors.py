"""What can go wrong, in words for the person at the terminal."""


class CliError(Exception):
    """It cannot be done; the message says what happened and what to do. The command ends with status 2."""


class NoKubectl(CliError):
    """There is no kubectl to ask."""


class NoCluster(CliError):
    """The API server cannot be reached, or it does not let us in."""


class NotAllowed(CliError):
    """The API server knows us and refuses."""


class NotInstalled(CliError):
    """The cluster does not know the resources."""


class NoSuchObject(CliError):
    """There is no object of that name."""

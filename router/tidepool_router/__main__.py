"""`tidepool-router sidecar|gateway`: read the flags, configure logs, run on uvloop."""

import asyncio
import resource
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import uvloop

from tidepool_router import app, keys_command, logs, replay_command, settings, usage_command, workflow_command
from tidepool_router.errors import RouterError, SettingsError
from tidepool_router.loading import command
from tidepool_router.workers import parent

# What ends by itself.
_COMMANDS: Final[Mapping[str, Callable[[Sequence[str]], int]]] = {
    "keys": keys_command.run,
    "replay": replay_command.run,
    "load": command.run,
    "drop": command.run_drop,
    "usage": usage_command.run,
    "workflow": workflow_command.run,
}


def _allow_many_sockets() -> None:
    """The soft limit of open files is 1,024 in many places; each request under way takes two."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def main() -> int:
    """Exit status: 0 after a drain, 2 for settings that cannot be used, 1 for workers that do not start."""
    run = _COMMANDS.get(sys.argv[1] if len(sys.argv) > 1 else "")
    if run is not None:
        return run(sys.argv[2:])
    try:
        options = settings.parse(sys.argv[1:], settings.environment())
        logs.configure(options.log_level)
        _allow_many_sockets()
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            if options.workers > 1 and options.worker_fd is None:
                runner.run(parent.run(options, sys.argv[1:]))
            else:
                runner.run(app.run(options))
    except SettingsError as error:
        print(f"tidepool-router: {error}", file=sys.stderr)
        return 2
    except RouterError as error:
        print(f"tidepool-router: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""`tidepool-operator run` and `tidepool-operator backtest`."""

import asyncio
import gc
import json
import logging
import signal
import sys
from collections.abc import Sequence
from datetime import UTC, datetime

from tidepool_operator.app import Operator
from tidepool_operator.cluster.client import Client
from tidepool_operator.errors import ConfigurationError, WatchesEnded
from tidepool_operator.settings import Settings, from_process


class JsonLines(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """The record's time, level, logger, message and, where there is one, trace."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the operator until SIGTERM or SIGINT; 2 when it cannot start, 1 when it must start anew."""
    given = sys.argv[1:] if arguments is None else arguments
    if given[:1] == ["backtest"]:
        from tidepool_operator.backtest.command import main as backtest

        return backtest(given[1:])
    settings = from_process(given)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    logging.basicConfig(level=settings.log_level, handlers=[handler])
    for chatty in ("httpx", "httpcore", "aiohttp.access", "asyncio"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    try:
        asyncio.run(serve(settings))
    except ConfigurationError as error:
        sys.stderr.write(f"tidepool-operator: {error}\n")
        return 2
    except WatchesEnded as error:
        logging.getLogger(__name__).error("%s", error)  # noqa: TRY400 - kopf has told the cause
        return 1
    return 0


async def serve(settings: Settings) -> None:
    """One operator, from connecting to giving up its Lease."""
    # Looking for cycles among all objects of a large cluster takes half a second; hardly anything here makes any.
    gc.set_threshold(20_000, 20, 20)
    async with await Client.connect(settings.kubeconfig) as client:
        operator = Operator(settings, client, _settle)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, operator.stop)
        await operator.run()


def _settle() -> None:
    """What is known by now stays, or goes when nobody names it any more: it need not be looked at again."""
    gc.collect()
    gc.freeze()


if __name__ == "__main__":
    sys.exit(main())

"""`tidepool-router keys new`: makes a key and the line of the keys document that lets it in."""

import argparse
import json
import secrets
from collections.abc import Sequence

from tidepool_router.keys import Minted, mint
from tidepool_router.keys.form import ID_BYTES, SECRET_BYTES


def run(arguments: Sequence[str]) -> int:
    """Print to standard output; exits as argparse does for unknown flags."""
    parser = argparse.ArgumentParser(prog="tidepool-router keys", description="API keys of a gateway.")
    commands = parser.add_subparsers(dest="command", required=True)
    new = commands.add_parser("new", help="make a key; it is shown once and kept nowhere")
    new.add_argument("--tenant", required=True, help="whose key it is")
    new.add_argument("--model", action="append", default=[], metavar="NAME", help="allowed model; may be repeated")
    new.add_argument("--requests-per-minute", type=float, metavar="N")
    new.add_argument("--tokens-per-minute", type=float, metavar="N")
    new.add_argument("--priority", metavar="NAME", help="highest priority that the key grants")
    given = parser.parse_args(arguments)
    minted = mint(secrets.token_bytes(ID_BYTES + SECRET_BYTES))
    print("# for the client; it cannot be shown again:")
    print(minted.text)
    print("# for the keys file, below `keys:`")
    print(f"- {_entry(minted, given)}")
    return 0


def _entry(minted: Minted, given: argparse.Namespace) -> str:
    """One line of YAML in flow style, which JSON is."""
    terms = {
        "id": minted.id,
        "sha256": minted.digest,
        "tenant": given.tenant,
        "models": given.model or None,
        "requestsPerMinute": given.requests_per_minute,
        "tokensPerMinute": given.tokens_per_minute,
        "priority": given.priority,
    }
    return json.dumps({name: value for name, value in terms.items() if value is not None})

"""Takes the console's chart library from its package, and writes down what was taken.

`python -m scripted.vendor [VERSION]`; without one the version that is there. npm checks the package's integrity.
"""

import hashlib
import json
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "operator/tidepool_operator/console/static/vendor/uplot"
FILES = {
    "dist/uPlot.iife.min.js": "uPlot.iife.min.js",
    "dist/uPlot.min.css": "uPlot.min.css",
    "LICENSE": "LICENSE",
}


def main(version: str) -> None:
    """Replace the files of FOLDER."""
    with tempfile.TemporaryDirectory() as scratch:
        pack = ["npm", "pack", "--json", f"uplot@{version}"]
        done = subprocess.run(pack, cwd=scratch, capture_output=True, text=True, check=True, timeout=120)
        (packed,) = json.loads(done.stdout)
        with tarfile.open(Path(scratch) / packed["filename"]) as archive:
            read = {name: archive.extractfile(f"package/{name}") for name in (*FILES, "package.json")}
            found = {name: file.read() for name, file in read.items() if file is not None}
    sums = {}
    for source, target in FILES.items():
        (FOLDER / target).write_bytes(found[source])
        sums[target] = hashlib.sha256(found[source]).hexdigest()
    told = json.loads(found["package.json"])
    kept = {"name": told["name"], "version": told["version"], "license": told["license"]}
    kept |= {"integrity": packed["integrity"], "files": sums}
    (FOLDER / "package.json").write_text(json.dumps(kept, indent=2) + "\n")


if __name__ == "__main__":
    there = json.loads((FOLDER / "package.json").read_text())["version"]
    main(sys.argv[1] if len(sys.argv) > 1 else there)

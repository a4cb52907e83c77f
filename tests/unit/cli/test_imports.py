"""What `--version` and `--help` load: nothing heavy, whatever verbs there are."""

from __future__ import annotations

import json
import subprocess
import sys

HEAVY = ["numpy", "torch", "duckdb", "chdb", "numba", "pyroute2"]

SCRIPT = f"""
import contextlib, io, json, sys
from fairlead.cli.app import run

def heavy():
    return [m for m in {HEAVY} if m in sys.modules]

found = {{}}
with contextlib.redirect_stdout(io.StringIO()):
    for words in (["--version"], ["--help"], ["nonsense"]):
        with contextlib.redirect_stderr(io.StringIO()):
            run(words)
        found[words[0]] = heavy()
    light = sorted(m for m in sys.modules if m.startswith("fairlead."))
    from fairlead.cli.verbs import verbs
    for verb in verbs():
        run([*verb.name.split(), "--help"])
        found[verb.name] = heavy()
print(json.dumps([found, light]))
"""


def test_help_of_no_verb_imports_anything_heavy():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    found, light = json.loads(done.stdout)
    assert len(found) > 10
    assert {name: what for name, what in found.items() if what} == {}
    rooms = {m.split(".")[1] for m in light}
    assert rooms <= {"base", "errors", "records", "report", "cli"}, "a verb was imported before it was asked for"


def test_version_imports_next_to_nothing():
    script = "import sys; from fairlead.cli.app import run; run(['--version']); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.splitlines()[1].split())
    assert not loaded & {"cyclopts", "msgspec", "attrs", "rich", "asyncio", *HEAVY}

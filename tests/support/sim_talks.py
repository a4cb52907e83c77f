"""Simulations that together exercise every rule of the law as the simulator compiles it, and their summaries.

The twin of mrc_talks.py: the same law, another body. Run as a program it writes the summaries anew:

    PYTHONPATH=tests python -m support.sim_talks > tests/golden/sim_talks.json
"""

from __future__ import annotations

import hashlib
import json
import sys
from dataclasses import asdict
from pathlib import Path

from fairlead.fabric.sim.engine import layout as at
from support.sim_runs import MRC_64, UEC_16, play

GOLDEN = Path(__file__).parent.parent / "golden" / "sim_talks.json"

INCAST = '[[traffic]]\nkind = "incast"\nto = 5\nsize_bytes = 400_000\n'
PERMUTATION = '[[traffic]]\nkind = "permutation"\nsize_bytes = 1_000_000\n'
ONE_PLANE = MRC_64.replace("planes = 4", "planes = 1")
FAULTS = (
    '[[fault]]\nkind = "t1"\nplane = 1\nt1 = 2\nat_us = 8\nuntil_us = 60\n'
    '[[fault]]\nkind = "loss"\nplane = 0\nloss = 0.01\n'
    '[[fault]]\nkind = "port"\nplane = 3\nnic = 9\nat_us = 10\nuntil_us = 40\n'
)
TALKS = {
    "incast": MRC_64 + INCAST,
    "incast, three tiers": UEC_16 + INCAST,
    "faults": MRC_64 + PERMUTATION + FAULTS,
    "incast at a sender": ONE_PLANE  # whose NACKs meet data on their way
    + '[[traffic]]\nkind = "incast"\nnics = "8-24"\nto = 5\nsize_bytes = 300_000\n'
    + '[[traffic]]\nkind = "incast"\nnics = "30-50"\nto = 10\nsize_bytes = 300_000\n',
    "untrimmed": ONE_PLANE + PERMUTATION + INCAST + "[queues]\ntrim = false\n",
    "roce": ONE_PLANE + PERMUTATION + INCAST + '[transport]\nkind = "roce"\n',
    "reps": ONE_PLANE + PERMUTATION + '[transport]\nkind = "uec"\npaths = "reps"\nsack_bytes = 3936\n'
    '[[fault]]\nkind = "loss"\nloss = 0.02\nuntil_us = 60\n',
    "bitmap": ONE_PLANE + PERMUTATION + '[transport]\nkind = "uec"\npaths = "bitmap"\n'
    '[[fault]]\nkind = "slow"\nplane = 0\nt0 = 0\nt1 = 1\nrate = 0.1\n',
}


def hold(text: str) -> dict[str, object]:
    """What a run did: packets and times, and a digest of when each message was complete."""
    played = play(text)
    messages = played.world.tables["messages"][:, [at.MS_PLACED, at.MS_ACKED]]
    return {
        "packets": asdict(played.results.counters),
        "end_ps": played.results.end.time_ps,
        "last_ps": int(messages.max()),
        "messages": hashlib.sha256(messages.tobytes()).hexdigest()[:16],
    }


if __name__ == "__main__":
    json.dump({name: hold(text) for name, text in TALKS.items()}, sys.stdout, indent=1)
    sys.stdout.write("\n")

"""Searches one decoder for inputs that it cannot take, guided by coverage: atheris (github.com/google/atheris).

    python -m support.fuzz "cluster files" --runs 1000000 --seconds 900

Ends with status 0 where it found nothing; else the input is left as crash-..., timeout-... or oom-... in the current
directory, and libFuzzer says so.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["fairlead"], enable_loader_override=False):
    from support.decoders import DECODERS, MOST_CHARS, mangled


def main() -> None:
    """As the words of the command say; never returns."""
    parser = argparse.ArgumentParser()
    parser.add_argument("name", choices=sorted(DECODERS))
    parser.add_argument("--runs", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=int, default=900)
    asked = parser.parse_args()
    decoder = DECODERS[asked.name]

    def one(data: bytes) -> None:
        with contextlib.suppress(decoder.refusals):
            decoder.take(data)

    def mutated(data: bytes, most: int, seed: int) -> bytes:
        """Half of the time by the grammar, else as libFuzzer does."""
        draw = random.Random(seed)
        if draw.random() < 0.5:
            return mangled(draw, (data, *decoder.seeds))[:most]
        return bytes(atheris.Mutate(data, most))

    with tempfile.TemporaryDirectory(prefix="fl-fuzz-") as corpus:
        for number, seed in enumerate(decoder.seeds):
            (Path(corpus) / str(number)).write_bytes(seed)
        limits = [f"-runs={asked.runs}", f"-max_total_time={asked.seconds}", f"-max_len={MOST_CHARS}", "-timeout=60"]
        words = [sys.argv[0], *limits, "-rss_limit_mb=3000", "-print_final_stats=1", corpus]
        atheris.Setup(words, one, custom_mutator=mutated)
        atheris.Fuzz()


if __name__ == "__main__":
    main()

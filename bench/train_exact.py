"""Streaming beside plain training, to the bit, for every family of tests/support/families.py: a table in Markdown.

    python bench/train_exact.py [--minutes 30] [--out docs/benchmarks/train-exact.md]

20 steps each, from the store on disk: accumulation 2, warm-up, clipping that fires, groups with and without weight
decay, dropout where the family has it; loss, norm, p, m and v compared with torch.equal.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import warnings
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]
warnings.filterwarnings("ignore")

import torch  # noqa: E402
import transformers  # noqa: E402

from support.families import FAMILIES, config  # noqa: E402
from support.training import compare, first_weights  # noqa: E402

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
STEPS = 20
TEXT = """\
# Equal to the bit: {num} families

{date}, `bench/train_exact.py`: torch {torch}, transformers {library}, CPU, one thread. Tiny random models of each
family, {steps} steps from the store on disk, beside plain training in memory: accumulation 2, warm-up, clipping, groups
with and without weight decay, dropout where the family has it. "Equal" is `torch.equal` on loss and norm of every step,
and on p, m and v of every tensor at the end; bf16 computes in bf16 from fp32 parameters.

| family | class | tensors | fp32 | bf16 |
|---|---|---|---|---|
"""


def row(family: str) -> tuple[bool, str]:
    shape = config(family)
    tensors = len(first_weights(shape))
    cells, good = [], True
    for dtype in DTYPES.values():
        with tempfile.TemporaryDirectory() as folder:
            wrong, results = compare(shape, steps=STEPS, clip=0.02, dtype=dtype, store=Path(folder) / "store")
        clipped = sum(result.clip < 1.0 for result in results)
        good &= not wrong
        cells.append(f"equal, clipped {clipped} of {STEPS}" if not wrong else f"differs: {wrong[0]}")
    return good, f"| {family} | {type(shape).__name__.removesuffix('Config')} | {tensors} | {' | '.join(cells)} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    begin, rows, all_good = time.monotonic(), [], True
    for family in sorted(FAMILIES):
        if time.monotonic() - begin > args.minutes * 60:
            break
        good, line = row(family)
        all_good &= good
        rows.append(line)
        print(line, flush=True)
    head = TEXT.format(
        num=len(rows),
        date=time.strftime("%Y-%m-%d"),
        torch=torch.__version__,
        library=transformers.__version__,
        steps=STEPS,
    )
    text = head + "".join(f"{line}\n" for line in rows)
    if args.out:
        args.out.write_text(text)
    return 0 if all_good and rows else 1


if __name__ == "__main__":
    sys.exit(main())

"""Streaming beside plain training, to the bit, for every family of tests/support/families.py: a table in Markdown.

    python bench/train_exact.py [--minutes 30] [--out docs/benchmarks/train-exact.md] [--go-on rows.jsonl]

20 steps each, from the store on disk: accumulation 2, warm-up, clipping that fires, groups with and without weight
decay, dropout where the family has it; loss, norm, p, m and v compared with torch.equal. Then the same with layers in
pieces: as the planner cuts them, at each size down to the smallest that it accepts (6 steps each), and what it refuses
is trained all the same, to see that it is right. With `--go-on` families that a file has are not run again.
"""

from __future__ import annotations

import argparse
import json
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

from fairlead.train import skeleton, take_apart  # noqa: E402
from fairlead.train.cuts import another_order  # noqa: E402
from support.families import FAMILIES, config  # noqa: E402
from support.training import GROUPS, compare, first_weights  # noqa: E402

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
STEPS, CUT_STEPS = 20, 6
TEXT = """\
# Equal to the bit: {num} families

{date}, `bench/train_exact.py`: torch {torch}, transformers {library}, CPU, one thread. Tiny random models of each
family, {steps} steps from the store on disk, beside plain training in memory: accumulation 2, warm-up, clipping, groups
with and without weight decay, dropout where the family has it. "Equal" is `torch.equal` on loss and norm of every step,
and on p, m and v of every tensor at the end; bf16 computes in bf16 from fp32 parameters.

"In pieces" is the same over {cut_steps} steps with layers cut in their modules, at each size of piece that the planner
tries: those it accepts are equal in fp32 and in bf16. {refused}

| family | class | tensors | fp32 | bf16 | in pieces | the smallest | what is not cut further, and why |
|---|---|---|---|---|---|---|---|
"""


def cuts(family: str) -> dict:
    """Layers in pieces, from the largest to the smallest, as `planning._in_pieces` tries them."""
    shape = config(family)
    model = skeleton(shape, torch.float32)
    parts = take_apart(model, GROUPS)
    found: dict = {"equal": [], "differs": [], "refused": [], "refused_but_equal": []}
    while True:
        most = max(block.numel for block in parts.blocks[1:]) - 1
        parts = take_apart(model, GROUPS, most)
        widest = max(parts.blocks[1:], key=lambda block: block.numel)
        if widest.numel > most:
            found["end"] = local(widest.name)
            return found
        why = another_order(parts)
        wrong = []
        try:
            for dtype in DTYPES.values():
                wrong += compare(shape, steps=CUT_STEPS, clip=0.02, dtype=dtype, most=most, slots=2)[0]
        except (AssertionError, RuntimeError) as error:  # a piece is called out of turn, or not at all
            wrong.append(str(error).splitlines()[0])
        size = f"{len(parts.blocks) - 1} pieces, {local(widest.name)}"
        if why:
            found["refused" if wrong else "refused_but_equal"].append(local(why))
        else:
            found["differs" if wrong else "equal"].append(size if not wrong else f"{size}: {wrong[0]}")


def local(name: str) -> str:
    """Seen from its layer."""
    parts = name.split(".")
    at = next((place for place, part in enumerate(parts) if part.isdigit()), -1)
    return ".".join(parts[at + 1 :]) or "the layer"


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
    pieces = cuts(family)
    good &= not pieces["differs"]
    said = f"equal at {len(pieces['equal'])} sizes" if pieces["equal"] else "not cut"
    said = f"differs: {pieces['differs'][0]}" if pieces["differs"] else said.replace("1 sizes", "1 size")
    refused = sorted({*pieces["refused"], *pieces["refused_but_equal"]})
    ends = [f"{pieces['end']} has no modules below"] if not refused else [f"{', '.join(refused)}: refused"]
    cells += [said, pieces["equal"][-1] if pieces["equal"] else "", "; ".join(ends)]
    return good, f"| {family} | {type(shape).__name__.removesuffix('Config')} | {tensors} | {' | '.join(cells)} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--go-on", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    begin, rows, all_good = time.monotonic(), [], True
    known = {}
    if args.go_on and args.go_on.exists():
        known = {said[0]: said[1:] for said in map(json.loads, args.go_on.read_text().splitlines())}
    for family in sorted(FAMILIES):
        if family not in known:
            if time.monotonic() - begin > args.minutes * 60:
                break
            known[family] = row(family)
            if args.go_on:
                with args.go_on.open("a") as file:
                    file.write(json.dumps([family, *known[family]]) + "\n")
        good, line = known[family]
        all_good &= good
        rows.append(line)
        print(line, flush=True)
    cut = sum("| equal at" in line for line in rows)
    refused = f"{cut} families are cut; what the planner refuses was trained, too, and differs or cannot be computed."
    head = TEXT.format(
        num=len(rows),
        date=time.strftime("%Y-%m-%d"),
        torch=torch.__version__,
        library=transformers.__version__,
        steps=STEPS,
        cut_steps=CUT_STEPS,
        refused=refused,
    )
    text = head + "".join(f"{line}\n" for line in rows)
    if args.out:
        args.out.write_text(text)
    return 0 if all_good and rows else 1


if __name__ == "__main__":
    sys.exit(main())

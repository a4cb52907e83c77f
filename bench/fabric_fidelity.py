"""The simulator beside the reference simulator, ultraethernet/uet-htsim: the same scenarios, the same figures.

    python bench/fabric_fidelity.py                              against the reference's stored outputs; four minutes
    python bench/fabric_fidelity.py --reference DIR/htsim_uec    also against its binary, seed by seed; half an hour

The binary is looked for in the reference's own folder `htsim/sim/datacenter`, beside its connection matrices:

    cmake -S htsim/sim -B build -DCMAKE_BUILD_TYPE=Release && make -C build
    ln -s $PWD/build/datacenter/htsim_uec htsim/sim/datacenter/

`--keep FILE` writes down what the reference said, seed by seed, and does not ask again for what is there.
`--only WORD` plays the cases with that word in their name.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from msgspec.structs import replace

from fairlead.fabric import sim

FIGURES = ("tail_us", "first_us", "new", "retransmits", "acks")
FCT_GOAL, COUNT_GOAL = 0.05, 0.10  # how far a figure may be from the reference's
PERMUTATION = "perm_1024n_1024c_0u_2000000b.cm"


def fat_tree(radix: int) -> str:
    """The reference's network when no topology file is given: a full fat tree of 100 Gb/s, 1 us a link."""
    half = radix // 2
    return (
        f'[topology]\nkind = "fat-tree"\npods = {radix}\nt0 = {half}\nt1 = {half}\ncores = {half * half}\n'
        f"hosts_per_t0 = {half}\n[queues]\necn_last_hop = true\n"
    )


def slow_core_links(num: int) -> str:
    """The reference's `-failed`: links from a core down to aggregation switch 0, at a quarter of their rate.

    Its experiment plans call them "running at 10% capacity"; fat_tree_topology.cpp has _failed_link_ratio(0.25).
    """
    fault = '[[fault]]\nkind = "slow"\nt1 = 0\ncore = {}\nrate = 0.25\ndirection = "down"\n'
    return "".join(fault.format(8 * link) for link in range(num))


def transport(paths: str = "", evs: int = 0, sack_bytes: int = 0) -> str:
    keys = {"paths": f'"{paths}"' if paths else "", "evs": evs, "sack_bytes": sack_bytes}
    return '[transport]\nkind = "uec"\n' + "".join(f"{key} = {value}\n" for key, value in keys.items() if value)


@dataclass(frozen=True)
class Case:
    """A scenario, how the reference is asked for it, and what its authors got (validate_outputs)."""

    name: str
    scenario: str
    matrix: str
    arguments: tuple[str, ...]
    stored: dict[str, float] = field(default_factory=dict)
    """One run with the reference's default seed, 13."""
    stored_in: str = ""


def stored(tail: float, first: float, new: int, retransmits: int, acks: int) -> dict[str, float]:
    return dict(zip(FIGURES, (tail, first, new, retransmits, acks), strict=True))


def _flow(src: int, dst: int) -> str:
    return f'[[traffic]]\nkind = "flow"\nnics = "{src}"\nto = {dst}\nsize_bytes = 2_000_000\n'


def _incast(to: int) -> str:
    return f'[[traffic]]\nkind = "incast"\nto = {to}\nsize_bytes = 2_000_000\n'


def permutation(paths: str, slow: int, result: dict[str, float]) -> Case:
    each = paths == "reps"  # REPS is made for a SACK per packet
    return Case(
        f"permutation, {paths}" + (f", {slow} slow core links" if slow else ""),
        fat_tree(16) + transport(paths, 128, 3936 if each else 0) + slow_core_links(slow),
        PERMUTATION,
        ("-end", "3000", "-load_balancing_algo", paths, "-paths", "128",
         *(("-sack_threshold", "4000") if each else ()), *(("-failed", str(slow)) if slow else ())),
        result, "validate_load_balancing_failed_snd.out" if slow else "validate_load_balancing_snd.out",
    )  # fmt: skip


CASES = (
    Case("one flow", fat_tree(4) + transport() + _flow(0, 13), "one.cm", ("-end", "1000"),
         stored(176.2, 176.2, 490, 0, 124), "validate_uec_sender.out"),
    Case("two directions", fat_tree(4) + transport() + _flow(0, 13) + _flow(13, 0), "bidir.cm", ("-end", "1000"),
         stored(176.804, 176.804, 980, 0, 248), "validate_uec_sender.out"),
    Case("incast 15:1", fat_tree(4) + transport() + _incast(15), "incast.cm", ("-end", "3000"),
         stored(2478.53, 1273.56, 7350, 811, 7131), "validate_uec_sender.out"),
    Case("incast 127:1", fat_tree(8) + transport() + _incast(33), "incast_128.cm", ("-end", "30000"),
         stored(21029.3, 10787.9, 62230, 72623, 62126), "validate_uec_sender.out"),
    permutation("oblivious", 0, stored(212.794, 167.831, 501760, 628, 187305)),
    permutation("bitmap", 0, stored(200.507, 167.749, 501760, 1, 171855)),
    permutation("reps", 0, stored(198.246, 169.306, 501760, 0, 501760)),
    permutation("oblivious", 8, stored(280.775, 167.583, 501760, 2958, 187914)),
    permutation("bitmap", 8, stored(220.269, 167.674, 501760, 656, 172108)),
    permutation("reps", 8, stored(206.684, 169.216, 501760, 298, 501760)),
)  # fmt: skip


Run = dict[str, float]
Runs = dict[str, dict[str, Run]]  # by case and seed


def play(case: Case, folder: Path, seed: int) -> Run:
    """One run of ours."""
    file = folder / "scenario.toml"
    file.write_text(case.scenario + ("" if "[[traffic]]" in case.scenario else _pairs(folder, case)))
    scenario = sim.load(file)
    results = sim.simulate(replace(scenario, run=replace(scenario.run, seed=seed)), folder)
    times = [float(time) for part in results.parts for time in part.fct_us]
    counted = results.counters
    return stored(max(times), min(times), counted.new, counted.retransmitted, counted.sacks)


def _pairs(folder: Path, case: Case) -> str:
    """The reference's own pairs where its matrix is at hand, else another random permutation for each seed."""
    if (folder / case.matrix).exists():
        return f'[[traffic]]\nkind = "file"\nfile = "{case.matrix}"\n'
    return '[[traffic]]\nkind = "permutation"\nsize_bytes = 2_000_000\n'


def ask(binary: Path, case: Case, seed: int) -> Run:
    """One run of the reference: the flows it says have finished, and its last line."""
    with tempfile.NamedTemporaryFile(suffix=".dat") as log:
        words = ["-o", log.name, "-tm", f"connection_matrices/{case.matrix}", *case.arguments, "-seed", str(seed)]
        said = subprocess.run(
            [binary, *words, "-sender_cc_only"], cwd=binary.parent, capture_output=True, text=True, check=True
        ).stdout
    times = [float(t) for t in re.findall(r"^Flow \S+ flowId .* finished at (\S+)", said, re.MULTILINE)]
    counted = re.search(r"^New: (\d+) Rtx: (\d+) .*ACKs: (\d+) NACKs", said, re.MULTILINE)
    if not times or not counted:
        raise SystemExit(f"{binary}: no results for {case.name}:\n{said[-2000:]}")
    new, retransmits, acks = (int(n) for n in counted.groups())
    return stored(max(times), min(times), new, retransmits, acks)


def spread(runs: dict[str, Run], figure: str) -> tuple[float, float, float]:
    """Median, least and most over the seeds."""
    values = [run[figure] for run in runs.values()]
    return statistics.median(values), min(values), max(values)


def words(values: tuple[float, float, float]) -> str:
    middle, low, high = (f"{v:,.1f}" if v % 1 else f"{v:,.0f}" for v in values)
    return middle if low == high else f"{middle} ({low} to {high})"


def judge(case: Case, figure: str, ours: tuple[float, float, float], theirs: tuple[float, float, float]) -> str:
    """Near the reference's median; FCTs of permutations inside its spread over the seeds, too."""
    is_fct = figure.endswith("_us")
    is_near = abs(ours[0] - theirs[0]) <= (FCT_GOAL if is_fct else COUNT_GOAL) * theirs[0]
    if case.matrix != PERMUTATION or theirs[1] == theirs[2]:
        return "met" if is_near else "MISSED"
    if theirs[1] <= ours[0] <= theirs[2]:
        return "inside" if is_near or not theirs[0] else "MISSED, inside"
    return "met, outside" if is_near and not is_fct else "MISSED"


def rows(case: Case, ours: dict[str, Run], theirs: dict[str, Run]) -> list[list[str]]:
    """The table of one case."""
    found = []
    for figure in FIGURES:
        mine, once = spread(ours, figure), case.stored[figure]
        other = spread(theirs, figure) if theirs else (once, once, once)
        away = f"{mine[0] / other[0] - 1:+.1%}" if other[0] else "-"
        found.append(
            [case.name, figure.replace("_us", " (us)"), words(mine), words(other) if theirs else "-",
             f"{once:,.6g}" if once % 1 else f"{once:,.0f}", away, judge(case, figure, mine, other)]
        )  # fmt: skip
    return found


def order(runs: Runs, slow: int) -> str:
    """Path choices by their median tail, best first."""
    names = ("oblivious", "bitmap", "reps")
    tails = {paths: spread(runs[permutation(paths, slow, {}).name], "tail_us")[0] for paths in names}
    return " < ".join(sorted(names, key=lambda n: tails[n]))


def main() -> int:
    ask_for = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask_for.add_argument("--reference", type=Path, help="the reference's binary, in its own folder")
    ask_for.add_argument("--keep", type=Path, help="a file that holds what the reference said")
    ask_for.add_argument("--seeds", type=int, default=10)
    ask_for.add_argument("--only", default="")
    given = ask_for.parse_args()
    binary = given.reference.absolute() if given.reference else None
    kept: Runs = json.loads(given.keep.read_text()) if given.keep and given.keep.exists() else {}
    ours: Runs = {}
    cases = [case for case in CASES if given.only in case.name]
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for case in cases:
            if binary:
                matrix = binary.parent / "connection_matrices" / case.matrix
                (folder / case.matrix).write_bytes(matrix.read_bytes())
            for seed in range(1, given.seeds + 1):
                ours.setdefault(case.name, {})[str(seed)] = play(case, folder, seed)
                if binary and str(seed) not in kept.setdefault(case.name, {}):
                    kept[case.name][str(seed)] = ask(binary, case, seed)
                    if given.keep:
                        given.keep.write_text(json.dumps(kept, indent=1))
            print(f"{case.name}: played", file=sys.stderr, flush=True)
    return report(cases, ours, kept if binary else {}, given.seeds)


def report(cases: list[Case], ours: Runs, theirs: Runs, seeds: int) -> int:
    """Print the table. The status is 1 where a goal is missed."""
    every = [row for case in cases for row in rows(case, ours[case.name], theirs.get(case.name, {}))]
    print(
        f"{seeds} seeds: median (least to most). The stored column is the one run that the reference's authors keep.\n"
    )
    print("| scenario | figure | ours | reference | reference, stored | difference | goal |")
    print("|---|---|---:|---:|---:|---:|---|")
    for row in every:
        print("| " + " | ".join(row) + " |")
    missed = sum(row[-1].isupper() for row in every)
    for slow in (0, 8):
        if all(permutation(paths, slow, {}).name in ours for paths in ("oblivious", "bitmap", "reps")):
            mine = order(ours, slow)
            other = order(theirs, slow) if theirs else "reps < bitmap < oblivious"
            missed += mine != other
            print(f"\nTails by path choice, {slow} slow links: ours {mine}; the reference {other}.")
    print(f"\n{len(every)} figures, {missed} missed")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())

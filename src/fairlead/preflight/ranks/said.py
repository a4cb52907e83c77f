"""What ranks say, as types: each line of a rank becomes a struct, or the reason why it does not. Pure.

Lines are kept in the run folder as they were heard (facts.py). Here each is held to its type and to a size, so that a
rank with a field missing, a number for a word or a megabyte of environment is one finding about that rank, and never
an end of the judging. What a newer rank says and nobody here knows is left out.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from fairlead.preflight.ranks.facts import RankFacts, nodes_by_rank

Text = Annotated[str, Meta(max_length=4096)]
Texts = Annotated[dict[Text, Text], Meta(max_length=512)]
Seconds = Annotated[float, Meta(ge=-1e9, le=1e9)]
"""Thirty years: sums of more than a float holds are none."""
Times = Annotated[list[Seconds], Meta(max_length=4096)]
Count = Annotated[int, Meta(ge=0)]


class Line(Struct, kw_only=True):
    """What every line has."""

    rank: Count
    node: Text
    at_s: float = 0.0


class Gpu(Struct, frozen=True, kw_only=True):
    """A GPU as the driver's files or CUDA itself describe it."""

    index: int | None = None
    uuid: Text = ""
    pci: Text = ""
    name: Text = ""
    numa: Text = ""
    cpus: Text = ""
    memory_bytes: int = 0

    @property
    def id(self) -> str:
        """What tells it from every other: its UUID, else its PCI address."""
        return self.uuid or self.pci


class Start(Line):
    """Who and where a rank is, before torch. Whether ranks are alike is not known where one leaves a field out."""

    local_rank: int
    world: int
    python: Text
    kernel: Text
    cpus: Text
    env: Texts
    slurm: Texts
    nccl_conf: Text | None
    """None: it is there and cannot be read."""
    interface: Text
    interface_by: Text
    interface_facts: Annotated[dict[str, Any], Meta(max_length=64)]
    """Empty where there is no such interface."""
    gpus: Count
    gpu: Gpu
    host: Text = ""
    rdma: Annotated[dict[Text, Texts], Meta(max_length=256)] = {}


class Torch(Line):
    """Versions, and the device as CUDA or HIP itself names it. `device` is None where torch reaches no GPU."""

    torch: Text
    cuda: Text
    """The CUDA that torch was built for; empty for a build without."""
    hip: Text
    nccl: Text = ""
    """Empty where torch reaches no GPU."""
    device: Gpu | None = None
    num_devices: Count | None = None
    """GPUs torch can see; None: an older rank, which did not say."""
    driver: Text = ""
    """Version of the GPU driver's kernel module; empty where none is loaded."""
    driver_cuda: Text = ""
    """Newest CUDA that the driver supports, by its own word (cuDriverGetVersion)."""
    device_files: Count | None = None
    """Device files of GPUs that this process can see: /dev/nvidia0, ... or /dev/dri/renderD..."""
    unreadable_files: Count = 0
    """Those of them that it may not open."""
    visible: dict[Text, Text] = {}
    """CUDA_VISIBLE_DEVICES and its kin, where they are set."""
    why_not: Text = ""
    """What torch answered when it was asked for a GPU and had none."""
    peer_access: bool | None = None


class Phase(Line):
    """What a rank is about to do."""

    phase: Text
    bytes: Count | None = None
    turn: int = 0
    step: int = -1


class Joined(Line):
    """Time to form the group."""

    s: float


class Ddp(Line):
    """One step of a small model."""

    gradient_is_mean: bool
    s: float = 0.0


class Reduced(Line):
    """All-reduces of one size: seconds of each turn, and what was wrong."""

    bytes: Count
    s: Times
    wrong: Count
    warmups: Count = 0
    """Turns before those, not timed."""
    first: int = -1
    got: float | None = 0.0
    """None: NaN or infinity."""
    want: float = 0.0


class LeftOut(Line):
    """Sizes that would have taken too long."""

    bytes: Annotated[list[int], Meta(max_length=256)]


class Rounds(Line):
    """The straggler test: seconds of computing, and of then waiting for the others, round by round."""

    compute_s: Times
    wait_s: Times


class Error(Line):
    """The exception that ended a rank."""

    kind: Text
    text: Text
    phase: Text = "start"
    at: Text = ""


class Nccl(Line):
    """What the collective library said of its network: each distinct line, and how often."""

    lines: Annotated[dict[Text, int], Meta(max_length=1024)]


class Card(Line):
    """What one GPU (or one CPU rank) delivers by itself. None: not measured."""

    matmul_flops: float | None = None
    """Matrix multiplication, floating-point operations a second."""
    matmul: Text = ""
    """Type and size of the matrices."""
    copy_bytes_s: float | None = None
    """Copy within its memory, read and written bytes together."""
    h2d_bytes_s: float | None = None
    d2h_bytes_s: float | None = None
    """From pinned host memory, and back."""
    node_reduce_s: float | None = None
    node_reduce_bytes: Count = 0
    node_ranks: Count = 0
    """One all-reduce among the ranks of the node."""
    missed: Texts = {}
    """What could not be measured, `matrix`, `copy` or `host`, and what torch said then."""
    took_s: float = 0.0


class Rail(Line):
    """One message over one rail, timed at the receiver; `s` None: it did not arrive in time."""

    src: Count
    """Rank that sent; the one that speaks received."""
    rail: Count
    bytes: Count
    s: float | None = None
    again: bool = False
    """A repetition, with no other test on either end."""
    device: Text = ""
    """Interface it was bound to, where the library was told one."""
    error: Text = ""


class RailPlan(Line):
    """What the rail test set out to do on this rank's rails, or why not."""

    rails: Annotated[list[Text], Meta(max_length=256)] = []
    bytes: Count = 0
    skipped: Text = ""


class Perf(Line):
    """What a client of perftest printed; the rank that speaks sent."""

    dst: Count
    rail: Count
    device: Text
    program: Text
    out: Annotated[str, Meta(max_length=16384)] = ""
    error: Text = ""


class PerfSkipped(Line):
    """Why rails were not measured by RDMA."""

    why: Text


_KINDS: dict[str, type[Line]] = {
    "start": Start,
    "torch": Torch,
    "phase": Phase,
    "joined": Joined,
    "ddp": Ddp,
    "reduced": Reduced,
    "left_out": LeftOut,
    "rounds": Rounds,
    "split": Rounds,  # the word of ranks before 0.2, in run folders that are judged again
    "error": Error,
    "nccl": Nccl,
    "card": Card,
    "rail": Rail,
    "rails": RailPlan,
    "perf": Perf,
    "perf_skipped": PerfSkipped,
}


@dataclass(frozen=True)
class Garbled:
    """A line that is not what it should be."""

    rank: int
    node: str
    say: str
    why: str


@dataclass
class Heard:
    """The lines of a run by kind; where a rank says a thing once, by rank."""

    facts: RankFacts
    garbled: list[Garbled] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)
    starts: list[Start] = field(default_factory=list)
    start: dict[int, Start] = field(default_factory=dict)
    torch: dict[int, Torch] = field(default_factory=dict)
    phases: dict[int, list[Phase]] = field(default_factory=dict)
    ddp: list[Ddp] = field(default_factory=list)
    reduced: list[Reduced] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)
    rounds: dict[int, Rounds] = field(default_factory=dict)
    errors: dict[int, Error] = field(default_factory=dict)
    """The first error of each rank."""
    nccl: dict[int, list[str]] = field(default_factory=dict)
    """What each rank's collective library said of its network."""
    cards: dict[int, Card] = field(default_factory=dict)
    rails: list[Rail] = field(default_factory=list)
    plans: dict[int, RailPlan] = field(default_factory=dict)
    perf: list[Perf] = field(default_factory=list)
    perf_skipped: str = ""
    beats: dict[int, Line] = field(default_factory=dict)

    def node_of(self, rank: int) -> str:
        """The node a rank is on, also of one that never spoke."""
        if rank in self.start:
            return self.start[rank].node
        return self.nodes[min(rank, len(self.nodes) - 1)] if self.nodes else ""

    def placed(self, raw: Mapping[str, Any]) -> dict[str, Any]:
        """A line with a node of the job: of tasks of a scheduler the one it names, if it is one, else the rank's own.

        What is no rank of the job has none.
        """
        rank, facts = raw.get("rank"), self.facts
        if not isinstance(rank, int) or not 0 <= rank < max(facts.wanted, len(self.nodes)):
            return {**raw, "rank": None, "node": ""}
        if facts.backend == "tasks" and str(raw.get("node")) in self.known:
            return dict(raw)
        return {**raw, "node": self.node_of(rank)}

    @functools.cached_property
    def spoke(self) -> frozenset[int]:
        """Ranks that said anything, also what cannot be read."""
        return frozenset([*(line.rank for line in self.lines), *(line.rank for line in self.garbled)])

    @functools.cached_property
    def finished(self) -> frozenset[int]:
        """Ranks that said that they were through."""
        return frozenset(rank for rank, phases in self.phases.items() if phases[-1].phase == "done")

    @functools.cached_property
    def known(self) -> frozenset[str]:
        """The nodes of the job."""
        return frozenset(self.facts.nodes)

    @functools.cached_property
    def nodes(self) -> list[str]:
        """The node of each rank."""
        return nodes_by_rank(self.facts)


def heard(facts: RankFacts) -> Heard:
    """Every line held to its type."""
    out = Heard(facts)
    by_say: defaultdict[str, list[Any]] = defaultdict(list)
    for raw in facts.lines:
        said = _typed(out.placed(raw), out.garbled)
        if said is not None:
            out.lines.append(said)
            by_say[str(raw["say"])].append(said)
    out.starts = by_say["start"]
    out.start = {s.rank: s for s in by_say["start"]}
    out.torch = {s.rank: s for s in by_say["torch"]}
    for said in by_say["phase"]:
        out.phases.setdefault(said.rank, []).append(said)
    out.ddp, out.reduced, out.left_out = by_say["ddp"], by_say["reduced"], by_say["left_out"]
    out.rounds = {s.rank: s for s in [*by_say["split"], *by_say["rounds"]]}
    out.errors = {s.rank: s for s in reversed(by_say["error"])}
    out.cards = {s.rank: s for s in by_say["card"]}
    out.rails, out.perf = by_say["rail"], by_say["perf"]
    out.perf_skipped = next((s.why for s in by_say["perf_skipped"]), "")
    out.plans = {s.rank: s for s in by_say["rails"]}
    out.nccl = {rank: list(words) for rank, words in facts.nccl.items()}
    for rank, words in facts.words.items():  # the library's warnings pass on at once: a rank that died still said them
        if loud := [word for word in words if "NCCL WARN" in word]:
            out.nccl.setdefault(rank, []).extend(loud)
    for said in by_say["nccl"]:
        out.nccl.setdefault(said.rank, []).extend(said.lines)
    for beat in facts.beats.values():
        said = _typed(out.placed({**beat, "say": "beat"}), out.garbled, Line)
        if said is not None:
            out.beats[said.rank] = said
    return out


def _typed(raw: dict[str, Any], garbled: list[Garbled], kind: type[Line] | None = None) -> Line | None:
    say = raw.get("say")
    kind = kind or _KINDS.get(say if isinstance(say, str) else "")
    if kind is None:
        return None
    try:
        return msgspec.convert(raw, kind)
    except msgspec.ValidationError as error:
        rank, node = raw.get("rank"), raw.get("node")
        garbled.append(Garbled(rank if isinstance(rank, int) else -1, str(node or ""), str(say), str(error)))
        return None

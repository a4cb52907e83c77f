"""What a run will take: memory of each tier term by term, disk, traffic and work of a step, and whether it fits.

Pure arithmetic over the layout and what `activations.play` found. Must not know: the machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fairlead.base.units import size
from fairlead.errors import TrainError
from fairlead.train.activations import Activations
from fairlead.train.disk import AHEAD, PIECE
from fairlead.train.kept import STAGING
from fairlead.train.layout import Block, by_size
from fairlead.train.optimizer import PIECE as PASSED
from fairlead.train.relay import DEPTH
from fairlead.train.relay import PIECE as SUMS
from fairlead.train.schedule import Schedule, schedule_of
from fairlead.train.settings import Settings
from fairlead.train.snapshots import BUFFERS as SNAPSHOT

_BUFFERS = 4 * 4 * PIECE * AHEAD
"""Bytes of a store, as long as it is open."""

_SCRATCH = 4 << 20
_PACKED = 8 << 20
"""What small tensors and stacks leave lying about, and what matrix kernels keep packed, a computing thread: by runs of
five models with two threads, whose freed memory goes back at once."""

_NAMES = {"host": "host memory", "device": "device memory", "disk": "room on the store's disk"}


@dataclass(frozen=True, slots=True)
class Term:
    """One use of memory."""

    tier: str
    """`device`, `host`, `disk`; on the CPU the device's memory is the host's."""
    what: str
    bytes: int
    is_guess: bool = False
    """From widths, as the model could not be played: more than it takes, as a rule."""


@dataclass(frozen=True, slots=True)
class Need:
    """All uses, and what a step moves and computes."""

    terms: tuple[Term, ...]
    read_bytes: int
    """From the store, a step."""
    written_bytes: int
    work_flop: float
    """Of a step, with the second forward: 8 per active parameter and token."""
    loaded: int = 0
    """Parameters that are loaded in a step without an update."""
    wire_bytes: int = 0
    """Weights that come from other ranks in a step, and sums of gradients that are passed on; of the rank with most."""
    guessed: str = ""
    """Why some terms are guesses; empty where none is."""

    def total(self, tier: str) -> int:
        """Bytes of a tier at the peak."""
        return sum(term.bytes for term in self.terms if term.tier == tier)


def need(
    blocks: Sequence[Block],
    settings: Settings,
    found: Activations,
    *,
    tokens: int,
    active: int,
    threads: int = 1,
    layer: int = 0,
) -> Need:
    """What a run needs; `tokens` of a whole step, `active` parameters a token meets, `threads` that compute on CPUs,
    `layer` elements of the largest whole layer where blocks are pieces.
    """
    width, kept_as = settings.dtype.itemsize, settings.parameters.itemsize
    state = kept_as + 8
    team, micro = settings.team, len(settings.mine)
    held = blocks if team is None else [block for block in blocks if team.owns(block.index)]
    layers = [block for block in blocks[1:] if not block.role]
    ends = [block for block in blocks if block.role]
    gradient = width if settings.accumulation == 1 else 4
    wide = sum(param.numel for param in blocks[0].params if param.wide)
    staying = [block for block in layers if block.index in settings.on_device]
    streamed = [block for block in blocks[1:] if block.index not in settings.on_device]
    widest = max((block.numel for block in streamed if not block.role), default=0)
    trained = max(block.trained for block in layers)
    slots = min(settings.slots, sum(not block.role for block in streamed))
    of_one = max((param.numel for block in layers for param in block.trainable), default=0)
    in_fp32 = max(0, 4 * of_one - found.computing)  # gradients of the layer are gone by then
    on_host = settings.device.type == "cpu"
    here, is_guess = "host" if on_host else "device", bool(found.guessed)
    step = [
        Term(
            here,
            "inputs of layers, until backward",
            micro * (found.inputs * (len(blocks) - 1) + found.shared),
            is_guess,
        ),
        Term(here, "logits and what else the head keeps", found.head, is_guess),
        Term(here, "computing: a layer that goes back, or the loss", found.computing, is_guess),
        *([] if team is not None else [Term(here, "gradients on their way", 2 * trained * gradient)]),
        *([Term(here, "a gradient in fp32, for its norm", in_fp32)] if team is None and gradient < 4 else []),
        Term(here, "gradients outside the layers", 4 * blocks[0].trained),
        *_gradients_of_ends(here, ends, settings, found, tokens),
    ]
    largest = max(block.numel for block in blocks)
    filling = 4 * (largest + max(largest, layer))
    terms = [
        Term(here, "weights outside the layers", blocks[0].numel * width),
        Term(here, "weights that the model keeps in fp32", 4 * wide),
        Term(here, f"weights of layers, slots: {slots}", slots * widest * width),
        *[Term(here, "weights of embedding or head, one slot", max(b.numel for b in ends) * width) for _ in ends[:1]],
        *step,
        *([Term("host", "pieces of the store", _BUFFERS)] if settings.store is not None else []),
        *([Term("host", "pieces of a snapshot", SNAPSHOT)] if settings.snapshots is not None else []),
        Term("host", "scratch of kernels and threads", _SCRATCH + (_PACKED * threads if on_host else 0)),
        Term(
            "host", "gradients that an update clips or widens", 4 * min(PASSED["cpu"], max(b.trained for b in blocks))
        ),
    ]
    more = filling - sum(term.bytes for term in step)
    if on_host and more > 0:
        terms.append(Term("host", "first weights, while the store is filled", more))
    if staying:
        also = 0 if settings.dtype == settings.parameters else width
        there = sum(also * block.numel + kept_as * block.numel + (8 + gradient) * block.trained for block in staying)
        terms.append(Term(here, f"state of layers that stay: {len(staying)}", there))
    if not on_host:
        terms.append(
            Term(
                "host",
                "first weights, or gradients on their way to the disk",
                max(filling, 2 * 4 * max(block.trained for block in blocks[1:])),
            )
        )
        if settings.dtype != settings.parameters:
            terms.append(Term(here, "fp32 on its way to a narrower type", 4 * min(largest, STAGING)))
    held = [block for block in held if block.index not in settings.on_device]
    total = sum(block.trained for block in held)
    frozen = sum(block.numel - block.trained for block in held)
    kept = sum(block.trained * (gradient if block.index else 4) for block in held)
    if team is not None:
        wire = "host" if team.wire.type == "cpu" else here
        most = max((block.trained for block in held), default=0)
        widest_pile = max([trained, *(block.trained for block in ends)])
        terms.append(Term(wire, "gradients that wait for sums", DEPTH * micro * widest_pile * width))
        terms.append(Term(wire, "sums under way, and a total", 4 * (2 * SUMS + most)))
    schedule = schedule_of(streamed, slots)
    again = schedule.loads if streamed else ()
    times = {block.index: num for block, num in zip(streamed, again, strict=True)}
    fused = settings.store is not None and team is None  # alone, an update of the store gives the weights on
    loaded = sum((times[b.index] - fused) * b.trained + times[b.index] * (b.numel - b.trained) for b in held if b.index)
    wire_bytes = _wired(blocks, times, settings) if team is not None else 0
    work = 8.0 * active * tokens
    spare = 0
    for alike in by_size(held):
        widest_state = max((block.trained for block in alike), default=0)
        spare += state * (widest_state + sum(widest_state - block.trained for block in alike))
    if settings.store is None:
        home = (
            Term("host", "parameters and moments", state * total + kept_as * frozen),
            Term("host", "gradients", kept),
        )
        written = sum(8 * block.trained + kept_as * block.numel for block in blocks)
        snapshots = Term("disk", "two snapshots of parameters and moments", 2 * written)
        return Need((*terms, *home, snapshots), 0, 0, work, loaded, wire_bytes, found.guessed)
    terms += [
        Term("disk", "parameters and moments", state * total + kept_as * frozen),
        Term("disk", "spare slots", spare),
        Term("disk", "gradients", kept),
    ]
    outer = blocks[0] in held and blocks[0].trained
    more = loaded + (wide + (blocks[0].numel if team is not None else blocks[0].numel - blocks[0].trained)) * bool(
        outer
    )
    read = state * total + kept + kept_as * more - _lying(blocks, held, streamed, schedule, settings)
    return Need(tuple(terms), read, state * total + kept, work, loaded, wire_bytes, found.guessed)


def _gradients_of_ends(
    here: str, ends: Sequence[Block], settings: Settings, found: Activations, tokens: int
) -> list[Term]:
    """Embedding and head have a sum of their own; where they are one weight, some of it waits through all layers."""
    if not ends:
        return []
    most, width = max(block.trained for block in ends), settings.dtype.itemsize
    micro, both = len(settings.mine), [block for block in ends if block.role == "both" and block.trained]
    terms = []
    if settings.team is None:
        gradient = width if settings.accumulation == 1 else 4
        norm = max(0, 4 * most - found.computing - found.head) if gradient < 4 else 0
        terms.append(Term(here, "gradients of embedding or head", most * gradient + norm))
    elif settings.head_tokens:
        terms.append(Term(here, "gradients of the head's pieces", 4 * max(b.trained for b in ends)))
    if both and not settings.head_tokens:
        rows, columns = both[0].params[0].shape
        waiting = rows if settings.team is not None else min(rows, micro * tokens // settings.accumulation)
        each = waiting * columns
        terms.append(Term(here, "of the shared weight, until the embedding's are there", each * (micro * width + 4)))
    return terms


def _lying(
    blocks: Sequence[Block], held: Sequence[Block], streamed: Sequence[Block], schedule: Schedule, settings: Settings
) -> int:
    """Bytes that updates do not read, as they lie where a step computes: of host memory, so on CPUs alone."""
    if settings.device.type != "cpu":
        return 0
    weights = (
        {0, *(streamed[place].index for place in schedule.stay)} if settings.dtype == settings.parameters else set()
    )
    layers = [block.index for block in streamed if not block.role]
    ends = [block.index for block in streamed if block.role]
    gradients = {0, *layers[:2], *ends[:1]} if settings.team is None else set()
    width = settings.gradients.itemsize
    return sum(
        block.trained * (settings.parameters.itemsize * (block.index in weights))
        + block.trained * ((width if block.index else 4) * (block.index in gradients))
        for block in held
    )


def _wired(blocks: Sequence[Block], times: Mapping[int, int], settings: Settings) -> int:
    """Bytes that come to a rank, and that it sends on: weights as they are computed with, sums in fp32."""
    weights = sum(times.get(block.index, 1) * block.numel for block in blocks) * settings.dtype.itemsize
    return weights + 4 * sum(block.trained for block in blocks)


def check(found: Need, limits: dict[str, int]) -> None:
    """Refuse what does not fit. Raises TrainError that names tier, shortfall and the largest terms."""
    for tier, limit in limits.items():
        total = found.total(tier)
        if total > limit:
            largest = sorted((term for term in found.terms if term.tier == tier), key=lambda term: -term.bytes)[:2]
            most = "; ".join(
                f"{term.what}{', guessed' if term.is_guess else ''} {size(term.bytes)}" for term in largest
            )
            short = f"{size(total)} are needed, {size(limit)} may be used"
            raise TrainError(
                "train/too-little-memory",
                f"the plan needs {size(total - limit)} more {_NAMES[tier]}: {short} ({most})",
                hint="free some space, or name another store"
                if tier == "disk"
                else "fewer rows, more accumulation, head_tokens, fewer slots; or a larger [memory] budget",
            )

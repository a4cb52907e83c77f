"""What this machine does in a second: seconds of matrix products, element operations, updates, and the store.

Everything is measured with what a run uses: products in the shapes of the model, the store's own files at the place of
the run's store (removed afterwards). Medians of some repetitions; other work on the machine is measured along.

Must not know: how a step is put together.
"""

from __future__ import annotations

import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from fairlead.train.activations import Work
from fairlead.train.blobs import memory_of
from fairlead.train.homes import InHost
from fairlead.train.lanes import Lanes
from fairlead.train.layout import Block, Named, ParamGroup, block
from fairlead.train.memory import arena
from fairlead.train.optimizer import Moment
from fairlead.train.pace import Rates
from fairlead.train.settings import Settings
from fairlead.train.store import DiskStore

_PRODUCTS = 6
"""Shapes of products that are measured: those that weigh most."""
_SECONDS = 0.25
"""Of one measurement, about."""
_ROWS = 2048
"""Rows of a product at most; it is linear in them."""
_SAMPLE = 8 << 20
"""Parameters of the block that is updated, loaded and kept."""


def rates(settings: Settings, work: Work, head_dim: int, length: int, place: Path) -> Rates:
    """Of the device and of the file system that `place` lies on."""
    device, dtype = settings.device, settings.dtype
    weights = sorted(work.products, key=lambda shape: -work.products[shape] * shape[0] * shape[1] * shape[2])
    products = {shape: _product(shape, device, dtype) for shape in weights[:_PRODUCTS]}
    lanes = Lanes(device)
    with tempfile.TemporaryDirectory(prefix="fairlead-measure-", dir=place) as folder:
        found = _home(settings, lanes, Path(folder))
    return Rates(
        product_s=products,
        attention_flops=_attention(head_dim, length, device, dtype),
        moved_bytes_s=_elements(device, dtype),
        call_s=_call(device),
        draw_s=_draw(device, dtype) if work.drawn else 0.0,
        processors=len(os.sched_getaffinity(0)),
        threads=torch.get_num_threads(),
        is_host=device.type == "cpu",
        **found,
    )


def _time(what: Callable[[], object], device: torch.device) -> float:
    """The median of as many calls as fit in a moment, three at least; the first one does not count."""
    taken: list[float] = []
    begin = time.perf_counter()
    while len(taken) < 4 or time.perf_counter() - begin < _SECONDS:
        start = time.perf_counter()
        what()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        taken.append(time.perf_counter() - start)
    return statistics.median(taken[1:])


def _product(shape: tuple[int, int, int], device: torch.device, dtype: torch.dtype) -> float:
    m, k, n = shape
    rows = min(m, _ROWS)
    left, right = torch.randn(rows, k, device=device, dtype=dtype), torch.randn(n, k, device=device, dtype=dtype)
    return _time(lambda: left @ right.T, device) * m / rows


def _attention(head_dim: int, length: int, device: torch.device, dtype: torch.dtype) -> float:
    length = min(length, _ROWS)
    heads = max(1, 4096 // length)
    q, k, v = (torch.randn(1, heads, length, head_dim, device=device, dtype=dtype) for _ in "qkv")
    run = nn.functional.scaled_dot_product_attention
    return 4.0 * heads * length * length * head_dim / _time(lambda: run(q, k, v, is_causal=True), device)


def _elements(device: torch.device, dtype: torch.dtype) -> float:
    """A gate as layers have it: one function and one product, element by element."""
    one, two = (torch.randn(1 << 21, device=device, dtype=dtype) for _ in range(2))
    moved = 5 * one.numel() * one.element_size()
    return moved / _time(lambda: nn.functional.silu(one) * two, device)


def _call(device: torch.device) -> float:
    small = torch.zeros(8, device=device)

    def many() -> None:
        for _ in range(200):
            small.add_(1.0)

    return _time(many, device) / 200


def _draw(device: torch.device, dtype: torch.dtype) -> float:
    """What dropout draws for an element."""
    some = torch.empty(1 << 20, device=device, dtype=dtype)
    return _time(lambda: some.bernoulli_(0.9), device) / some.numel()


def _home(settings: Settings, lanes: Lanes, folder: Path) -> dict[str, float]:
    """Where the state lives: what an update, a load and keeping gradients take a parameter."""
    dtype = settings.dtype if settings.accumulation == 1 else torch.float32
    one = [Named("w", "w", (_SAMPLE,), 0)]
    blocks = (
        block(0, "outer", [Named("o", "o", (1,), 0)], (ParamGroup("*", 0.0),)),
        block(1, "x", one, (ParamGroup("*", 0.1),)),
    )
    moment = Moment(1e-4, 0.5, settings.rule, {"w": 1, "o": 1})
    device = settings.device
    weights = arena(_SAMPLE, settings.dtype, device)
    gradients = arena(_SAMPLE, dtype, device)
    if settings.store is None:
        home = InHost(blocks[1], lanes, dtype, None, settings.parameters)
        try:
            return _in_memory(home, blocks[1], moment, weights, gradients)
        finally:
            home.close()
    store = DiskStore(folder / "store", blocks, lanes, dtype, "measured", settings.parameters)
    try:
        for each in store.homes:
            each.put(torch.zeros(each.block.numel))
        store.begin()
        store.homes[0].keep(arena(blocks[0].trained, torch.float32, device)).synchronize()

        def keep() -> None:
            store.homes[1].keep(gradients).synchronize()

        def update(index: int, into: torch.Tensor) -> None:
            store.homes[index].update(moment)
            store.homes[index].load(into)

        kept = _time(keep, device)
        committed = _time(lambda: store.commit(1, moment, {}, [], (0.0, 0.0)), device)
        outer = arena(blocks[0].numel, settings.dtype, device)
        per_block = _time(lambda: update(0, outer), device)
        cpu, begin, times = time.process_time(), time.perf_counter(), 0
        while times < 3 or time.perf_counter() - begin < 2 * _SECONDS:
            update(1, weights)
            times += 1
        took, cpu = (time.perf_counter() - begin) / times, (time.process_time() - cpu) / times
        loaded = _time(lambda: store.homes[1].load(weights), device)
        read_s, write_s = (_bytes(store, write=write) for write in (False, True))
    finally:
        store.close()
    return {
        "update_s": max(0.0, took - per_block) / _SAMPLE,
        "update_cpu_s": cpu / _SAMPLE,
        "block_s": per_block,
        "load_s": loaded / _SAMPLE,
        "keep_s": kept / _SAMPLE,
        "commit_s": committed,
        "read_bytes_s": read_s,
        "write_bytes_s": write_s,
    }


def _bytes(store: DiskStore, *, write: bool) -> float:
    """Bytes a second that all threads together read, or write into the spare slot."""
    slots, hands = store.layers, store.hands
    size = min(len(memory_of(hands.passing)), slots.size)
    num = slots.size // size
    call = slots.file.write if write else slots.file.read

    def one(place: int) -> None:
        buffers = hands.belt.buffers[place % len(hands.belt.buffers)]
        call(memory_of(buffers[0])[:size], slots.spare * slots.size + place * size)

    taken = []
    for _ in range(3):
        begin = time.perf_counter()
        list(hands.pool.map(one, range(num)))
        if write:
            slots.file.sync()
        taken.append(time.perf_counter() - begin)
    return num * size / statistics.median(taken)


def _in_memory(
    home: InHost, one: Block, moment: Moment, weights: torch.Tensor, gradients: torch.Tensor
) -> dict[str, float]:
    device = weights.device
    home.put(torch.zeros(one.numel))
    kept = _time(lambda: home.keep(gradients).synchronize(), device)
    cpu, begin, times = time.process_time(), time.perf_counter(), 0
    while times < 3 or time.perf_counter() - begin < _SECONDS:
        home.update(moment)
        times += 1
    took, cpu = (time.perf_counter() - begin) / times, (time.process_time() - cpu) / times
    loaded = _time(lambda: home.load(weights), device)
    return {
        "update_s": took / _SAMPLE,
        "update_cpu_s": cpu / _SAMPLE,
        "block_s": 0.0,
        "load_s": loaded / _SAMPLE,
        "keep_s": kept / _SAMPLE,
        "commit_s": 0.0,
        "read_bytes_s": math.inf,
        "write_bytes_s": math.inf,
    }

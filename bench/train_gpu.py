"""Streamed training on one GPU beside plain training in its memory. Complete in itself; prints JSON lines.

    python bench/train_gpu.py --minutes 9 --sections limits,exact,seven
    python bench/train_gpu.py --smoke           everything tiny, on the CPU: nothing here may break on the day

Sections: limits (what this machine can do at best), exact (equal to the bit with plain training), depth (device
memory by number of layers), wide (a layer of 175B shape), disk (1B with its state on disk), sweep (3B by tokens a
step), seven (7B streamed beside 7B in memory, in turns; needs 110 GB of device memory for the latter, three is the same
with 3B), thirteen (13B, as many layers on the device as the host has no room for, else from disk), peers
(train_peers.py, where their wheels are). Each stands for itself: one that fails is told, the next goes on; none begins
when time is up. Exit code 1 where one failed.
Needs torch and transformers, and fairlead with its two dependencies: PYTHONPATH=src is enough.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

import torch
import transformers
from torch import nn
from transformers import AutoModelForCausalLM, GptOssConfig, LlamaConfig, MixtralConfig, OPTConfig

from fairlead.train import loss, memory, model
from fairlead.train.activations import play
from fairlead.train.engine import Engine
from fairlead.train.layout import Block, Named, ParamGroup, block
from fairlead.train.model import random_values
from fairlead.train.optimizer import AdamW, Moment, clip_factor, update
from fairlead.train.plan import need
from fairlead.train.settings import Settings, seed_of

CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda", 0) if CUDA else torch.device("cpu")
GROUPS = (ParamGroup("*norm*", 0.0), ParamGroup("*bias", 0.0), ParamGroup("*", 0.1))
BEGIN = time.monotonic()
OUT = None
FAILED: list[str] = []


def say(section: str, **values) -> None:
    if "error" in values and not values.get("is_known"):
        FAILED.append(section)
    line = json.dumps({"section": section, "at_s": round(time.monotonic() - BEGIN, 1), **values}, default=str)
    print(line, flush=True)
    if OUT is not None:
        OUT.write(line + "\n")
        OUT.flush()


def sync() -> None:
    if CUDA:
        torch.cuda.synchronize()


def seconds(call, repeats: int = 5) -> float:
    call()
    sync()
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        call()
        sync()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def clean() -> None:
    gc.collect()
    if CUDA:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def peak_gib() -> float:
    return round(torch.cuda.max_memory_allocated() / 2**30, 3) if CUDA else 0.0


def hbm_gib() -> float:
    return round(torch.cuda.mem_get_info()[1] / 2**30, 1) if CUDA else 0.0


def host() -> dict:
    lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":" in line)
    gib = lambda text: round(int(text.split()[0]) / 2**20, 2)  # noqa: E731
    found = {"available_gib": gib(lines["MemAvailable"]), "rss_gib": gib(status["VmRSS"])}
    limit = Path("/sys/fs/cgroup/memory.max")
    if limit.exists() and limit.read_text().strip().isdigit():
        found["cgroup_gib"] = round(int(limit.read_text()) / 2**30, 2)
        found["cgroup_used_gib"] = round(int(Path("/sys/fs/cgroup/memory.current").read_text()) / 2**30, 2)
    return found


# what the machine can do


def limits(size: int, smoke: bool) -> None:
    say(
        "limits",
        what="machine",
        torch=torch.__version__,
        transformers=transformers.__version__,
        cores=os.cpu_count(),
        affinity=len(os.sched_getaffinity(0)),
        threads=torch.get_num_threads(),
        device=str(DEVICE),
        name=torch.cuda.get_device_name() if CUDA else "",
        hbm_gib=hbm_gib(),
        **host(),
    )
    begin = time.perf_counter()
    pinned = memory.arena(size // 4, torch.float32, torch.device("cpu"), pinned=CUDA)
    say("limits", what="map, touch and register", gbs=round(size / (time.perf_counter() - begin) / 1e9, 2))

    def four(_):
        return memory.arena(size // 4, torch.float32, torch.device("cpu"), pinned=CUDA)

    begin = time.perf_counter()
    with ThreadPoolExecutor(4) as pool:
        others = list(pool.map(four, range(4)))
    say("limits", what="the same, four at once", gbs=round(4 * size / (time.perf_counter() - begin) / 1e9, 2))
    loose = torch.ones(size // 4)
    for threads in sorted({1, 8, max(1, (os.cpu_count() or 2) - 2), os.cpu_count() or 2}):
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        copy_s = seconds(lambda: loose.copy_(pinned), 3)
        adam, adam16 = adamw_rate(size // 4, torch.float32), adamw_rate(size // 4, torch.bfloat16)
        say(
            "limits",
            what="cpu",
            threads=threads,
            copy_gbs=round(2 * size / copy_s / 1e9, 1),
            adamw_gparams_s=round(adam, 3),
            adamw_gbs=round(adam * 28, 1),
            adamw_bf16_gparams_s=round(adam16, 3),
        )
        torch.set_num_threads(before)
    if CUDA:
        there = torch.empty(size // 4, device=DEVICE)
        back = torch.empty(size // 4, device=DEVICE)
        h2d = seconds(lambda: there.copy_(pinned, non_blocking=True))
        d2h = seconds(lambda: others[0].copy_(back, non_blocking=True))
        a, b = torch.cuda.Stream(), torch.cuda.Stream()

        def both() -> None:
            with torch.cuda.stream(a):
                there.copy_(pinned, non_blocking=True)
            with torch.cuda.stream(b):
                others[0].copy_(back, non_blocking=True)

        two = seconds(both)
        pageable = seconds(lambda: there.copy_(loose), 2)
        onto = seconds(lambda: there.copy_(back))
        say(
            "limits",
            what="bus",
            h2d_gbs=round(size / h2d / 1e9, 1),
            d2h_gbs=round(size / d2h / 1e9, 1),
            both_gbs=round(2 * size / two / 1e9, 1),
            pageable_h2d_gbs=round(size / pageable / 1e9, 1),
            device_copy_gbs=round(2 * size / onto / 1e9),
        )
        for other in (pinned, *others):
            memory.release(other)
        del there, back
    n = 256 if smoke else 8192
    x = torch.randn(n, n, device=DEVICE, dtype=torch.bfloat16)
    say("limits", what="gemm bf16", n=n, tflops=round(2 * n**3 / seconds(lambda: x @ x, 10) / 1e12, 2))


def adamw_rate(numel: int, dtype: torch.dtype) -> float:
    """Updates per second in units of 1e9, by the engine's own update."""
    one = block(1, "x", [Named("w", "w", (numel // 4096, 4096), 0)], GROUPS)
    p, m, v = (torch.zeros(one.numel) for _ in "pmv")
    g = torch.ones(one.numel, dtype=dtype)
    moment = Moment(1e-4, 1.0, AdamW(), {"w": 1})
    return one.numel / seconds(lambda: update(one, p, m, v, g, moment), 3) / 1e9


# exactness


def exact() -> None:
    base = {
        "vocab_size": 512,
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 6,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "max_position_embeddings": 256,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }
    configs = {
        "llama": LlamaConfig(**base, attention_dropout=0.1),
        "mixtral": MixtralConfig(**base, num_local_experts=4, output_router_logits=True),
        "gpt_oss": GptOssConfig(**base, head_dim=32, num_local_experts=4, num_experts_per_tok=2, sliding_window=64),
    }
    if CUDA:
        torch.use_deterministic_algorithms(True, warn_only=True)
    for name, config in configs.items():
        for dtype in (torch.float32, torch.bfloat16):
            for accumulation in (1, 2):
                for place in ("host", "device"):
                    try:
                        one_exact(name, config, dtype, accumulation, place)
                    except Exception as exc:  # noqa: BLE001
                        say("exact", family=name, dtype=str(dtype), place=place, error=f"{type(exc).__name__}: {exc}")
    if CUDA:
        torch.use_deterministic_algorithms(False)


def one_exact(name, config, dtype, accumulation, place, steps=6, clip=0.5) -> None:  # noqa: PLR0917
    torch.manual_seed(1)
    first = {
        n: p.detach().clone()
        for n, p in AutoModelForCausalLM.from_config(config, dtype=torch.float32).named_parameters()
    }
    data = [batches(config.vocab_size, 2, 64, accumulation, 10 * s) for s in range(steps)]
    rates = [1e-3 * (s + 1) / steps for s in range(steps)]
    losses, norms, masters, states = plain(config, dtype, first, data, rates, clip, on_cpu=place == "host")
    parts = model.take_apart(model.skeleton(config, dtype), GROUPS)
    kept = frozenset(range(len(parts.blocks))) if place == "device" else frozenset()
    engine = Engine(parts, Settings(DEVICE, dtype, accumulation=accumulation, clip=clip, on_device=kept))
    engine.fill(first.items())
    results = [engine.step(data[s], lr=rates[s], seed=7) for s in range(steps)]
    state = engine.state()
    bad = [n for n in masters if not torch.equal(state[n]["p"].cpu(), masters[n].detach().cpu())]
    bad_m = [n for n in states if not torch.equal(state[n]["m"].cpu(), states[n]["exp_avg"].cpu())]
    bad_v = [n for n in states if not torch.equal(state[n]["v"].cpu(), states[n]["exp_avg_sq"].cpu())]
    rel = max(distance(state[n]["p"].cpu(), masters[n].detach().cpu()) for n in masters)
    say(
        "exact",
        family=name,
        dtype=str(dtype),
        accumulation=accumulation,
        place=place,
        loss_equal=[r.loss for r in results] == losses,
        norm_equal=[r.grad_norm for r in results] == norms,
        clipped=sum(r.clip < 1 for r in results),
        unequal_p=len(bad),
        unequal_m=len(bad_m),
        unequal_v=len(bad_v),
        tensors=len(masters),
        worst_rel=rel,
        first=bad[:2],
        losses=[r.loss for r in results],
        plain_losses=losses,
    )
    engine.close()


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).norm() / b.norm().clamp_min(1e-12))


def plain(config, dtype, first, data, rates, clip, *, on_cpu):  # noqa: PLR0917
    """Training as everyone writes it: the whole model in memory, fp32 masters, AdamW on the CPU or on the device."""
    net = AutoModelForCausalLM.from_config(config, dtype=dtype).train().to(DEVICE)
    where = torch.device("cpu") if on_cpu else DEVICE
    masters = {n: nn.Parameter(first[n].to(where, copy=True)) for n, _ in net.named_parameters()}
    with torch.no_grad():
        for n, p in net.named_parameters():
            p.copy_(masters[n])
    decay = [m for n, m in masters.items() if not n.endswith("bias") and "norm" not in n]
    rest = [m for n, m in masters.items() if n.endswith("bias") or "norm" in n]
    groups = [{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW([g for g in groups if g["params"]], fused=True)
    losses, norms = [], []
    for step, micros in enumerate(data):
        targets = sum(int((b["labels"][..., 1:] != -100).sum()) for b in micros)
        total, grads = None, {}
        for k, batch in enumerate(micros):
            torch.manual_seed(seed_of(7, step, k))
            value = net(**{a: t.to(DEVICE) for a, t in batch.items()}, use_cache=False, num_items_in_batch=targets).loss
            value.backward()
            total = value.detach() if total is None else total + value.detach()
            for n, p in net.named_parameters():
                if p.grad is not None:
                    grads[n] = p.grad.float() + grads[n] if n in grads else p.grad.float()
                    p.grad = None
        norm = float(torch.nn.utils.get_total_norm(list(grads.values())))
        factor = clip_factor(norm, clip)
        for n, g in grads.items():
            masters[n].grad = g.to(where) * factor
        for group in optimizer.param_groups:
            group["lr"] = rates[step]
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            for n, p in net.named_parameters():
                p.copy_(masters[n])
        losses.append(float(total))
        norms.append(norm)
    return losses, norms, masters, {n: optimizer.state[m] for n, m in masters.items() if m in optimizer.state}


def batches(vocab: int, rows: int, seq: int, accumulation: int, seed: int) -> list[dict]:
    generator = torch.Generator().manual_seed(seed)
    made = [torch.randint(0, vocab, (rows, seq), generator=generator) for _ in range(accumulation)]
    return [{"input_ids": ids, "labels": ids} for ids in made]


# speed


def shape(name: str, smoke: bool, layers: int = 0) -> LlamaConfig:
    sizes = {  # hidden, ffn, layers, heads, kv heads, vocabulary
        "7B": (4096, 11008, 32, 32, 32, 32000),
        "1B": (2048, 5632, 22, 32, 4, 32000),
        "3B": (3072, 8192, 28, 24, 8, 32000),
        "13B": (5120, 13824, 40, 40, 40, 32000),
        "smoke": (64, 128, 6, 4, 2, 256),
    }
    hidden, ffn, num, heads, kv, vocab = sizes["smoke" if smoke else name]
    return LlamaConfig(
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=ffn,
        num_hidden_layers=layers or num,
        num_attention_heads=heads,
        num_key_value_heads=kv,
        max_position_embeddings=8192,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )


def apart(config) -> model.Parts:
    return model.take_apart(model.skeleton(config, torch.bfloat16), GROUPS)


def model_flops(parts: model.Parts, tokens: int) -> float:
    """6 per parameter that multiplies, and token; the embedding's lookup and attention's own products count nothing."""
    lookup = 0 if parts.ties else max(p.numel for p in parts.blocks[0].params if "embed" in p.name)
    return 6.0 * tokens * (sum(p.numel for b in parts.blocks for p in b.params) - lookup)


def opened(parts: model.Parts, what: str, **settings) -> Engine:
    begin = time.perf_counter()
    engine = Engine(parts, Settings(DEVICE, torch.bfloat16, **settings))
    built = time.perf_counter() - begin
    begin = time.perf_counter()
    engine.fill(random_values(parts, 1, DEVICE))
    sync()
    params = sum(p.numel for b in parts.blocks for p in b.params)
    say(
        what,
        did="opened",
        params=params,
        open_s=round(built, 1),
        fill_s=round(time.perf_counter() - begin, 1),
        device_gib=round(torch.cuda.memory_allocated() / 2**30, 2) if CUDA else 0,
        **host(),
    )
    return engine


def timed(engine: Engine, data: list[dict]) -> tuple[float, object]:
    sync()
    begin = time.perf_counter()
    result = engine.step(data, lr=1e-5, seed=1)
    sync()
    return time.perf_counter() - begin, result


def report(what: str, parts: model.Parts, tokens: int, times: list[float], result=None, **more) -> None:
    step = statistics.median(times)
    extra = (
        {
            "loss": result.loss,
            "norm": result.grad_norm,
            "clip": result.clip,
            "seconds": {k: round(v, 3) for k, v in result.seconds.items()},
        }
        if result
        else {}
    )
    say(
        what,
        tokens=tokens,
        step_s=round(step, 4),
        steps=[round(t, 3) for t in times],
        tokens_s=round(tokens / step, 1),
        model_tflops=round(model_flops(parts, tokens) / step / 1e12, 1),
        peak_gib=peak_gib(),
        **extra,
        **more,
    )


class InMemory:
    """Plain training in device memory: bf16 weights, fp32 masters and moments, recompute, fused AdamW, clip."""

    def __init__(self, config, clip: float | None, head_tokens: int) -> None:
        with torch.device(DEVICE):
            self.net = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).train()
        self.net.config.use_cache = False
        self.net.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        self.clip, self.head_tokens, self.steps = clip, head_tokens, 0
        self.state = {}
        self.blocks: dict[str, Block] = {}
        for order, (name, p) in enumerate(self.net.named_parameters()):
            self.state[name] = [p.detach().float().reshape(-1), *(torch.zeros(p.numel(), device=DEVICE) for _ in "mv")]
            self.blocks[name] = block(0, name, [Named(name, name, tuple(p.shape), order)], GROUPS)

    def step(self, data: list[dict]) -> float:
        named = dict(self.net.named_parameters())
        batch = {k: v.to(DEVICE) for k, v in data[0].items()}
        targets = int((data[0]["labels"][..., 1:] != -100).sum())

        def add(param, gradient) -> None:
            param.grad = gradient if param.grad is None else param.grad.add_(gradient)

        if self.head_tokens:
            value = loss.in_pieces(self.net, batch, targets, self.head_tokens, add)
        else:
            value = loss.whole(self.net, batch, targets)
        value.backward()
        norm = float(torch.nn.utils.get_total_norm([p.grad for p in named.values()]))
        factor = clip_factor(norm, self.clip)
        self.steps += 1
        with torch.no_grad():
            for name, p in named.items():
                master, m, v = self.state[name]
                moment = Moment(1e-5, factor, AdamW(), {name: self.steps})
                update(self.blocks[name], master, m, v, p.grad.reshape(-1), moment)
                p.copy_(master.view(p.shape))
                p.grad = None
        return float(value.detach())


def in_memory_steps(memory_run: InMemory, data: list[dict], num: int) -> list[float]:
    times = []
    for _ in range(num):
        sync()
        begin = time.perf_counter()
        memory_run.step(data)
        sync()
        times.append(time.perf_counter() - begin)
    return times


def beside(what, name, smoke, rows, seq, kept, left, clip) -> None:  # noqa: PLR0917
    """Streamed and in memory in turns, where both fit side by side; else one after the other."""
    config = shape(name, smoke)
    parts = apart(config)
    clean()
    data = batches(config.vocab_size, rows, seq, 1, 3)
    tokens = rows * seq
    engine = opened(parts, what, clip=clip, head_tokens=4096, on_device=frozenset(range(kept)))
    clean()
    streamed: list[float] = []
    try:
        timed(engine, data)
        for _ in range(3):
            took, result = timed(engine, data)
            streamed.append(took)
        report(what, parts, tokens, streamed, result, did="streamed", kept_on_device=kept, clip_at=clip, **host())
        if left() < 60:
            return
        clean()
        try:
            memory_run = InMemory(config, clip, 4096)
            in_memory_steps(memory_run, data, 1)
        except torch.OutOfMemoryError as exc:
            say(what, did="in memory beside", error=str(exc)[:200], is_known=True)
            memory_run = None
            engine.close()
            engine = None
            clean()
            memory_run = InMemory(config, clip, 4096)
            in_memory_steps(memory_run, data, 1)
        pairs = []
        for _ in range(3):
            if left() < 20:
                break
            plain_s = statistics.median(in_memory_steps(memory_run, data, 2))
            if engine is not None:
                stream_s = statistics.median([timed(engine, data)[0] for _ in range(2)])
            else:
                stream_s = statistics.median(streamed)
            pairs.append((plain_s, stream_s))
        report(what, parts, tokens, [a for a, _ in pairs], did="in memory", clip_at=clip)
        report(what, parts, tokens, [b for _, b in pairs], did="streamed, in turns" if engine else "streamed, before")
        ratio = statistics.median(a / b for a, b in pairs)
        say(what, did="ratio", streamed_to_in_memory=round(ratio, 4), pairs=[[round(t, 3) for t in p] for p in pairs])
    finally:
        if engine is not None:
            engine.close()
        clean()


def sweep(smoke: bool, left) -> None:
    """One engine, growing steps; with clipping, and without."""
    config = shape("3B", smoke)
    parts = apart(config)
    clean()
    engine = opened(parts, "sweep", clip=1.0, head_tokens=4096)
    try:
        for rows in (1, 2) if smoke else (16, 32, 8, 4):
            for clip in (1.0, None):
                if left() < 20:
                    return
                clean()
                engine.settings = dataclasses.replace(engine.settings, clip=clip)
                data = batches(config.vocab_size, rows, 32 if smoke else 2048, 1, 3)
                timed(engine, data)
                times = [timed(engine, data) for _ in range(2)]
                report("sweep", parts, data[0]["input_ids"].numel(), [t for t, _ in times], times[-1][1], clip_at=clip)
    finally:
        engine.close()
        clean()


def depth(smoke: bool, left) -> None:
    for layers in (2, 4) if smoke else (4, 8, 16, 32):
        if left() < 20:
            return
        parts = apart(shape("7B", smoke, layers))
        clean()
        data = batches(200, 1, 32 if smoke else 2048, 1, 3)
        engine = opened(parts, "depth", clip=1.0, head_tokens=4096)
        clean()
        times = [timed(engine, data)[0] for _ in range(2)]
        inputs = layers * data[0]["input_ids"].numel() * parts.model.config.hidden_size * 2 / 2**30
        report(
            "depth",
            parts,
            data[0]["input_ids"].numel(),
            times,
            layers=layers,
            layer_inputs_gib=round(inputs, 3),
            without_inputs_gib=round(peak_gib() - inputs, 3),
        )
        engine.close()


def wide(smoke: bool, left) -> None:
    """Two layers of 175B shape; time per layer, and what 96 of them would take."""
    hidden, ffn, heads = (64, 128, 4) if smoke else (12288, 49152, 96)
    config = OPTConfig(
        vocab_size=512,
        hidden_size=hidden,
        word_embed_proj_dim=hidden,
        ffn_dim=ffn,
        num_hidden_layers=2,
        num_attention_heads=heads,
        max_position_embeddings=2048,
        dropout=0.0,
        attention_dropout=0.0,
        pad_token_id=1,
        bos_token_id=2,
        eos_token_id=2,
    )
    parts = apart(config)
    clean()
    engine = opened(parts, "wide", clip=1.0, slots=2)
    try:
        for rows in (1,) if smoke else (2, 4, 8):
            if left() < 20:
                return
            clean()
            data = batches(512, rows, 32 if smoke else 2048, 1, 3)
            timed(engine, data)
            times = [timed(engine, data) for _ in range(2)]
            report(
                "wide",
                parts,
                data[0]["input_ids"].numel(),
                [t for t, _ in times],
                times[-1][1],
                params_per_layer=sum(p.numel for p in parts.blocks[1].params),
            )
    finally:
        engine.close()
        clean()


def disk(smoke: bool, left) -> None:
    """State on disk beside state in host memory: the same losses to the bit, and what the disk costs."""
    config = shape("1B", smoke)
    parts = apart(config)
    data = batches(config.vocab_size, 1 if smoke else 8, 32 if smoke else 2048, 1, 3)
    losses = {}
    with tempfile.TemporaryDirectory(dir=os.environ.get("STORE")) as folder:
        for where in ("host", "disk"):
            if left() < 40:
                return
            clean()
            store = Path(folder) / "store" if where == "disk" else None
            engine = opened(parts, "disk", clip=1.0, head_tokens=4096, store=store)
            try:
                results = [timed(engine, data) for _ in range(4)]
            finally:
                engine.close()
            losses[where] = [result.loss for _, result in results]
            report(
                "disk", parts, data[0]["input_ids"].numel(), [t for t, _ in results[1:]], results[-1][1], state=where
            )
    say("disk", equal=losses["host"] == losses["disk"], losses=losses)


def thirteen(smoke: bool, left) -> None:
    """13B by a plan: the fewest layers on the device with which the rest fits in host memory, else all from disk."""
    config = shape("13B", smoke)
    parts = apart(config)
    clean()
    rows, seq = (1, 32) if smoke else (8, 2048)
    store = Path(os.environ.get("STORE", tempfile.gettempdir())) / "fairlead-thirteen"
    room = {
        "host": int(host()["available_gib"] * 0.92 * 2**30),
        "device": torch.cuda.mem_get_info()[0] if CUDA else 1 << 40,
        "disk": shutil.disk_usage(store.parent).free,
    }
    found = play(parts, torch.bfloat16, rows, seq, 4096, 1, device=DEVICE.type)
    base = Settings(DEVICE, torch.bfloat16, clip=1.0, head_tokens=4096)
    ways = [dataclasses.replace(base, on_device=frozenset(range(1, num + 1))) for num in range(parts.num_layers + 1)]
    for way in [*ways, dataclasses.replace(base, store=store)]:
        wanted = need(parts.blocks, way, found, tokens=rows * seq, active=1)
        tiers = ("host", "device", "disk") if way.store else ("host", "device")
        if all(wanted.total(tier) <= room[tier] for tier in tiers):
            break
    else:
        wants = {tier: round(wanted.total(tier) / 2**30, 1) for tier in room}
        say("thirteen", refused=wants, room_gib={tier: round(num / 2**30, 1) for tier, num in room.items()})
        return
    planned = round(wanted.total("device") / 2**30, 2)
    engine = opened(parts, "thirteen", clip=1.0, head_tokens=4096, on_device=way.on_device, store=way.store)
    try:
        data = batches(config.vocab_size, rows, seq, 1, 3)
        timed(engine, data)
        times = []
        while len(times) < 3 and (not times or left() > 2 * times[-1][0]):
            times.append(timed(engine, data))
        where = "disk" if way.store else f"host, and {len(way.on_device)} layers on the device"
        report(
            "thirteen",
            parts,
            rows * seq,
            [took for took, _ in times],
            times[-1][1],
            state=where,
            planned_device_gib=planned,
            **host(),
        )
    finally:
        engine.close()
        shutil.rmtree(store, ignore_errors=True)
        clean()


def peers(smoke: bool, left) -> None:
    """Peers in processes of their own; those that cannot be had say why."""
    words = ["--smoke"] if smoke else ["--tokens", "16384", "--num", "3"]
    script = Path(__file__).with_name("train_peers.py")
    limit = max(30.0, left())
    done = subprocess.run([sys.executable, script, *words], capture_output=True, text=True, timeout=limit, check=False)
    for line in done.stdout.splitlines():
        say("peers", **json.loads(line))
    if done.returncode:
        say("peers", error=done.stderr[-600:])


def main() -> int:
    global OUT
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--sections", default="limits,exact,sweep,depth,wide,disk,seven,thirteen,peers")
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--tokens", type=int, default=32768, help="per step, in the section seven")
    parser.add_argument("--keep", type=int, default=3, help="blocks that stay on the device, in the section seven")
    parser.add_argument("--no-clip", action="store_true", help="in the section seven")
    parser.add_argument("--threads", type=int, default=0, help="of the CPU; default: all but two")
    args = parser.parse_args()
    if not CUDA and not args.smoke:
        say("end", skipped="torch finds no GPU here; --smoke plays everything on the CPU")
        return 0
    if os.environ.get("OUT"):
        OUT = (Path(os.environ["OUT"]) / "train_gpu.jsonl").open("a", encoding="utf-8")
    torch.set_num_threads(args.threads or max(1, len(os.sched_getaffinity(0)) - 2))

    def left() -> float:
        return args.minutes * 60 - (time.monotonic() - BEGIN)

    rows = 2 if args.smoke else max(1, args.tokens // 2048)
    seq = 32 if args.smoke else 2048
    clip = None if args.no_clip else 1.0
    known = {
        "limits": lambda: limits(1 << (22 if args.smoke else 30), args.smoke),
        "exact": exact,
        "sweep": lambda: sweep(args.smoke, left),
        "depth": lambda: depth(args.smoke, left),
        "disk": lambda: disk(args.smoke, left),
        "wide": lambda: wide(args.smoke, left),
        "seven": lambda: beside("seven", "7B", args.smoke, rows, seq, args.keep, left, clip),
        "thirteen": lambda: thirteen(args.smoke, left),
        "peers": lambda: peers(args.smoke, left),
        "three": lambda: beside("three", "3B", args.smoke, rows, seq, args.keep, left, clip),
    }
    for name in args.sections.split(","):
        if left() < 15:
            say(name, skipped="time is up")
            continue
        try:
            known[name]()
        except BaseException as exc:
            say(name, error=f"{type(exc).__name__}: {str(exc)[:600]}", trace=traceback.format_exc()[-1500:])
            if isinstance(exc, KeyboardInterrupt):
                raise
        clean()
    say("end", failed=sorted(set(FAILED)))
    return 1 if FAILED else 0


if __name__ == "__main__":
    sys.exit(main())

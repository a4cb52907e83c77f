"""Training from disk beside plain training in memory, on this machine's CPU: in turns, as ratios.

    python bench/train_disk.py pairs --tokens 256,512,1024      a model that fits both ways, step by step in turns
    python bench/train_disk.py pairs --tokens 512 --out FILE    the same; pairs are added to a file, call after call
    python bench/train_disk.py sum --out FILE                   medians of all of them
    python bench/train_disk.py large --heap-gib 1.5             1.3 B parameters under a limit of the heap, some steps
    python bench/train_disk.py pairs --smoke

Plain training computes layers again in backward, too, clips, and updates with the same fused AdamW. Ratios are of
neighbouring steps, the median of all pairs: other work on the machine meets both. The roofline is what the busiest
resource takes, by what was measured on this machine just before. Prints one JSON line per pair.

With clipping no update may begin before the last gradient is there, and each is needed by its layer's forward. So the
limit of a step is plain training's backward, and then the larger of what plain training takes to forward, clip and
update, and of what the bytes that fall into forward take at the rate at which the disk reads and writes at once;
`allows` is plain training beside that.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from fairlead.train import AdamW, Engine, ParamGroup, Settings, random_values, seed_of, skeleton, take_apart
from fairlead.train.activations import play
from fairlead.train.blobs import BlobFile, memory_of
from fairlead.train.disk import PIECE
from fairlead.train.layout import group_of
from fairlead.train.measure import rates
from fairlead.train.memory import arena
from fairlead.train.pace import Share, pace
from fairlead.train.plan import need

GROUPS = (ParamGroup("*norm*", 0.0), ParamGroup("*", 0.1))
CPU = torch.device("cpu")
RULE = AdamW()


def say(**values) -> None:
    print(json.dumps(values), flush=True)


def shape(hidden: int, ffn: int, layers: int, vocab: int) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=ffn,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        num_key_value_heads=hidden // 64,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
    )


def tokens_of(vocab: int, tokens: int, step: int) -> list[dict]:
    ids = torch.randint(
        0, vocab, (max(1, tokens // 256), min(tokens, 256)), generator=torch.Generator().manual_seed(step)
    )
    return [{"input_ids": ids, "labels": ids}]


class Plain:
    def __init__(self, config, first) -> None:
        self.net = AutoModelForCausalLM.from_config(config, dtype=torch.float32).train()
        with torch.no_grad():
            for name, param in self.net.named_parameters():
                param.copy_(first[name])
        self.net.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        groups: dict = {}
        for name, param in self.net.named_parameters():
            groups.setdefault(group_of(name, GROUPS).weight_decay, []).append(param)
        named = [{"params": params, "weight_decay": decay} for decay, params in groups.items()]
        self.optimizer = torch.optim.AdamW(named, lr=1e-4, fused=True)
        self.steps = 0
        self.seconds: dict[str, float] = {}

    def step(self, batches) -> float:
        begin = time.perf_counter()
        targets = sum(int((batch["labels"][..., 1:] != -100).sum()) for batch in batches)
        torch.manual_seed(seed_of(1, self.steps, 0))
        loss = self.net(**batches[0], use_cache=False, num_items_in_batch=targets).loss
        forward = time.perf_counter()
        loss.backward()
        backward = time.perf_counter()
        torch.nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.steps += 1
        self.seconds = {"backward": backward - forward, "others": time.perf_counter() - backward + forward - begin}
        return float(loss.detach())


def io_bytes() -> tuple[int, int]:
    lines = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(lines["read_bytes"]), int(lines["write_bytes"])


def peak_gib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def read_and_written_s(folder: Path, read: int, written: int) -> float:
    """Seconds that the disk takes for so many bytes, read and written at once by the store's pieces and threads."""
    size = 4 * PIECE
    file = BlobFile(folder.parent / "rate", size * 128, create=True)
    try:
        buffers = [memory_of(arena(PIECE, torch.float32, CPU)) for _ in range(4)]

        def one(num: int, share: float) -> None:
            move = file.read if int((num + 1) * share) > int(num * share) else file.write
            move(buffers[num % 4], size * (num % 128))

        taken = []
        with ThreadPoolExecutor(4) as pool:
            for share in (0.0, *[read / (read + written)] * 3):  # first all is written, so that there is what to read
                begin = time.perf_counter()
                list(pool.map(one, range(128), [share] * 128))
                file.sync()
                taken.append(time.perf_counter() - begin)
    finally:
        file.close()
        file.path.unlink()
    return (read + written) / (128 * size / statistics.median(taken[1:]))


def roofline(parts, folder: Path, count: int) -> dict:
    """What a step takes at least, by what this machine does now: what the planner has as the busiest resource."""
    settings = Settings(CPU, clip=1.0, rule=RULE, store=folder)
    rows, length = max(1, count // 256), min(count, 256)
    found = play(parts, torch.float32, rows, length, 0)
    wanted = need(parts.blocks, settings, found, tokens=count, active=1)
    measured = rates(settings, found.work, 64, length, folder.parent)
    share = Share(1, parts.blocks, wanted.loaded)
    taken = pace(found.work, parts.blocks, share, measured, on_disk=True, width=4)
    trained = sum(block.trained for block in parts.blocks)
    updating = wanted.read_bytes - 4 * wanted.loaded, wanted.written_bytes - 4 * trained
    return {
        "forward_bytes": sum(updating),
        "forward_disk_s": round(read_and_written_s(folder, *updating), 3),
        "roofline_s": round(taken.seconds, 3),
        "bound_by": taken.binding,
        "busy_s": {name: round(value, 2) for name, value in taken.bounds.items()},
        "disk_gb_s": [round(measured.read_bytes_s / 1e9, 2), round(measured.write_bytes_s / 1e9, 2)],
    }


def pairs(folder: Path, tokens: list[int], num: int, config: LlamaConfig, out: Path | None) -> None:
    parts = take_apart(skeleton(config, torch.float32), GROUPS)
    params = sum(param.numel for block in parts.blocks for param in block.params)
    first = dict(random_values(parts, 1, CPU))
    folder.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
    engine = Engine(parts, Settings(CPU, clip=1.0, rule=RULE, store=folder))
    engine.fill(first.items())
    plain = Plain(config, first)
    del first
    done = 0
    roofline(parts, folder, tokens[0])  # the first time brings what later ones have
    for count in tokens:
        bound = roofline(parts, folder, count)
        for turn in range(num + 1):
            batches = tokens_of(config.vocab_size, count, done)
            io, cpu, begin = io_bytes(), time.process_time(), time.perf_counter()
            result = engine.step(batches, lr=1e-4, seed=1)
            streamed, streamed_cpu = time.perf_counter() - begin, time.process_time() - cpu
            moved = [after - before for after, before in zip(io_bytes(), io, strict=True)]
            cpu, begin = time.process_time(), time.perf_counter()
            loss = plain.step(batches)
            memory, memory_cpu = time.perf_counter() - begin, time.process_time() - cpu
            assert loss == result.loss, (loss, result.loss)
            done += 1
            limit_s = plain.seconds["backward"] + max(plain.seconds["others"], bound["forward_disk_s"])
            if turn:  # the first of a size brings memory that later ones have
                line = {
                    "tokens": count,
                    "memory_s": round(memory, 3),
                    "limit_s": round(limit_s, 3),
                    "disk_s": round(streamed, 3),
                    "memory_cpu_s": round(memory_cpu, 2),
                    "disk_cpu_s": round(streamed_cpu, 2),
                    "waited_s": round(result.seconds["waited"], 3),
                    "read_per_param": round(moved[0] / params, 2),
                    "written_per_param": round(moved[1] / params, 2),
                    **bound,
                }
                say(**line)
                if out is not None:
                    with out.open("a") as file:
                        file.write(json.dumps(line) + "\n")
    named = dict(plain.net.named_parameters())
    unequal = [name for name, kinds in engine.state().items() if not torch.equal(kinds["p"], named[name].detach())]
    say(params=params, steps=done, unequal=len(unequal), tensors=len(named))
    engine.close()
    shutil.rmtree(folder, ignore_errors=True)


def summed(out: Path) -> None:
    """Medians by tokens of all pairs that a file has: `ratio` of neighbours, and of processor seconds."""
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    for count in sorted({line["tokens"] for line in lines}):
        some = [line for line in lines if line["tokens"] == count]
        say(
            tokens=count,
            pairs=len(some),
            ratio=round(statistics.median([one["memory_s"] / one["disk_s"] for one in some]), 3),
            cpu_ratio=round(statistics.median([one["memory_cpu_s"] / one["disk_cpu_s"] for one in some]), 3),
            best=[round(min(one[key] for one in some), 2) for key in ("memory_s", "disk_s")],
            allows=round(statistics.median([one["memory_s"] / one["limit_s"] for one in some]), 3),
            of_limit=round(statistics.median([one["limit_s"] / one["disk_s"] for one in some]), 3),
            efficiency=round(statistics.median([one["roofline_s"] / one["disk_s"] for one in some]), 3),
            waited=round(statistics.median([one["waited_s"] / one["disk_s"] for one in some]), 3),
            all=[[one["memory_s"], one["disk_s"]] for one in some],
        )


def large(folder: Path, tokens: int, steps: int, heap_gib: float, config: LlamaConfig) -> None:
    base = peak_gib()
    parts = take_apart(skeleton(config, torch.float32), GROUPS)
    params = sum(param.numel for block in parts.blocks for param in block.params)
    data = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":" in line)
    used = int(data["VmData"].split()[0]) * 1024
    limit = used + int(heap_gib * 2**30)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    say(params=params, state_gb=round(params * 12 / 1e9, 2), heap_limit_gib=heap_gib, libraries_gib=round(base, 2))
    begin = time.perf_counter()
    shutil.rmtree(folder, ignore_errors=True)
    engine = Engine(parts, Settings(CPU, clip=1.0, rule=RULE, store=folder, slots=2, head_tokens=256))
    engine.fill(random_values(parts, 1, CPU))
    say(filled_s=round(time.perf_counter() - begin, 1), peak_gib=round(peak_gib() - base, 3))
    for step in range(steps):
        before, begin = io_bytes(), time.perf_counter()
        result = engine.step(tokens_of(config.vocab_size, tokens, step), lr=1e-4, seed=1)
        took, after = time.perf_counter() - begin, io_bytes()
        say(
            step=step,
            loss=result.loss,
            step_s=round(took, 1),
            seconds={key: round(value, 1) for key, value in result.seconds.items()},
            tokens_s=round(tokens / took, 1),
            model_gflops=round(6 * params * tokens / took / 1e9, 1),
            peak_gib=round(peak_gib() - base, 3),
            read_gb=round((after[0] - before[0]) / 1e9, 2),
            written_gb=round((after[1] - before[1]) / 1e9, 2),
        )
    engine.close()
    shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["pairs", "sum", "large"], nargs="?", default="pairs")
    parser.add_argument("--store", type=Path, default=Path("/tmp/fairlead-train-bench/store"))
    parser.add_argument("--tokens", default="256,512,1024")
    parser.add_argument("--num", type=int, default=4)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--heap-gib", type=float, default=1.5)
    parser.add_argument("--smoke", action="store_true")
    args = parser.parse_args()
    tokens = [int(count) for count in args.tokens.split(",")]
    small = shape(128, 256, 3, 512)
    if args.what == "pairs":
        pairs(args.store, tokens, args.num, small if args.smoke else shape(1024, 2816, 12, 8192), args.out)
    elif args.what == "sum":
        summed(args.out)
    else:
        large(args.store, tokens[-1], args.num, args.heap_gib, small if args.smoke else shape(1536, 4096, 44, 16384))


if __name__ == "__main__":
    main()

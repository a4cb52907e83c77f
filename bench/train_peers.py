"""One training step by ours and by its peers: the same model, tokens and machine, step by step in turns, as ratios.

    pip install --no-deps torchao==0.18.0 deepspeed==0.19.8
    pip install hjson ninja pydantic py-cpuinfo msgpack einops psutil      # deepspeed's; g++ builds its Adam once
    python bench/train_peers.py --tokens 512,1024 --num 5
    python bench/train_peers.py --smoke                                    # seconds
    python bench/train_peers.py --only torch,disk,infinity                 # all at once take 20 GB of memory

    torch       all in memory: layers computed again in backward, clipping, fused AdamW; the others are held against it
    memory      ours, state in host memory
    disk        ours, state on disk, every step committed
    torchao     as torch, with CPUOffloadOptimizer
    deepspeed   ZeRO-3, parameters and optimizer offloaded to the CPU, DeepSpeedCPUAdam
    infinity    the same, optimizer offloaded to files beside the store (needs libaio and its headers)

Each has a process of its own, which waits while another one has its turn: three steps, and at their end all that was
begun is done (ours updates a layer before its next forward; the last update of a turn is beside nothing, which is
against us). fp32, the same first weights and weight decay. A peer that cannot be had says why, in its words. A ratio
is torch's seconds divided by the peer's in the same round, the median of all rounds; `loss_off` is the largest distance
of its losses from torch's; `peak_gib` is memory above what importing took, since the first step. Prints JSON lines.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

import torch
from train_disk import GROUPS, RULE, Plain, io_bytes, say, shape, tokens_of

from fairlead.train import Engine, Settings, random_values, skeleton, take_apart
from fairlead.train.layout import group_of

LR = 1e-4
Step = Callable[[list[dict]], float]
TURN = 3
"""Steps of a turn."""
DEVICE = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")


def model_of(is_small: bool):
    return shape(128, 256, 3, 512) if is_small else shape(1024, 2816, 12, 8192)


def ours(config, folder: Path, keep: str) -> Step:
    parts = take_apart(skeleton(config, torch.float32), GROUPS)
    engine = Engine(parts, Settings(DEVICE, clip=1.0, rule=RULE, store=folder if keep == "disk" else None))
    engine.fill(random_values(parts, 1, torch.device("cpu")))

    def step(batches: list[dict]) -> float:
        if not batches:
            engine.flush()
            return 0.0
        return engine.step(batches, lr=LR, seed=1).loss

    return step


def plain(config) -> Plain:
    parts = take_apart(skeleton(config, torch.float32), GROUPS)
    found = Plain(config, dict(random_values(parts, 1, torch.device("cpu"))))
    found.net.to(DEVICE)
    return found


def there(batches: list[dict]) -> list[dict]:
    return [{key: value.to(DEVICE) for key, value in batch.items()} for batch in batches]


def by_torch(config, _: Path) -> Step:
    """No batches mean: finish what was begun."""
    found = plain(config)
    return lambda batches: found.step(there(batches)) if batches else 0.0


def by_torchao(config, _: Path) -> Step:
    """Gradients leave for the host before their norm is known: it clips nothing there, which spares it some work."""
    from torchao.optim import CPUOffloadOptimizer

    found = plain(config)
    found.optimizer = CPUOffloadOptimizer(found.optimizer.param_groups, torch.optim.AdamW, lr=LR, fused=True)
    return lambda batches: found.step(there(batches)) if batches else 0.0


def by_infinity(config, folder: Path) -> Step:
    from deepspeed.ops.op_builder import AsyncIOBuilder

    if not AsyncIOBuilder().is_compatible():
        raise RuntimeError("async_io of DeepSpeed finds no libaio with headers: apt install libaio-dev")
    there = folder.parent / "infinity"
    there.mkdir(parents=True, exist_ok=True)
    return by_deepspeed(config, folder, nvme=str(there))


def by_deepspeed(config, _: Path, nvme: str = "") -> Step:
    on_cpu = DEVICE.type == "cpu"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    os.environ |= {
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    import deepspeed

    deepspeed.init_distributed(dist_backend="gloo" if on_cpu else "nccl", verbose=False)
    found = plain(config)
    groups: dict[float, list] = {}
    for name, param in found.net.named_parameters():
        groups.setdefault(group_of(name, GROUPS).weight_decay, []).append(param)
    offload = {"device": "nvme", "nvme_path": nvme} if nvme else {"device": "cpu"}
    rule = {"lr": LR, "betas": [RULE.beta1, RULE.beta2], "eps": RULE.eps}
    engine, *_ = deepspeed.initialize(
        model=found.net,
        model_parameters=[{"params": params, "weight_decay": decay} for decay, params in groups.items()],
        config={
            "train_micro_batch_size_per_gpu": 1,
            "gradient_clipping": 1.0,
            "optimizer": {"type": "AdamW", "params": rule},
            "zero_optimization": {
                "stage": 3,
                "offload_optimizer": {**offload, "pin_memory": not on_cpu},
                "offload_param": {"device": "cpu", "pin_memory": not on_cpu},
            },
        },
    )

    def step(batches: list[dict]) -> float:
        if not batches:
            return 0.0
        targets = sum(int((batch["labels"][..., 1:] != -100).sum()) for batch in batches)
        loss = engine(**there(batches)[0], use_cache=False, num_items_in_batch=targets).loss
        engine.backward(loss)
        engine.step()
        return float(loss.detach())

    return step


WAYS: dict[str, Callable[..., Step]] = {
    "torch": by_torch,
    "memory": lambda config, folder: ours(config, folder, "memory"),
    "disk": lambda config, folder: ours(config, folder, "disk"),
    "torchao": by_torchao,
    "deepspeed": by_deepspeed,
    "infinity": by_infinity,
}


def memory_gib(key: str) -> float:
    lines = dict(line.partition(":")[::2] for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines[key].split()[0]) / 2**20


def work(name: str, folder: Path, is_small: bool) -> None:
    """Steps as asked for on standard input: a number and tokens a line; answers are lines of JSON."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what peers print

    def answer(**values) -> None:
        answers.write(json.dumps(values) + "\n")
        answers.flush()

    config = model_of(is_small)
    os.environ.setdefault("DS_ACCELERATOR", DEVICE.type)
    library = {"torchao": "torchao", "deepspeed": "deepspeed", "infinity": "deepspeed"}.get(name)
    try:
        if library:
            __import__(library)
        base = memory_gib("VmRSS")
        step = WAYS[name](config, folder)
    except Exception as error:  # noqa: BLE001 - whatever a peer cannot do here is its answer
        lines = [line for line in str(error).splitlines() if line.strip()]
        answer(refused=f"{type(error).__name__}: {lines[-1] if lines else ''}"[:300])
        return
    Path("/proc/self/clear_refs").write_text("5")  # the peak from here on, which has no first weights in it
    answer(ready=True)
    for line in sys.stdin:
        number, tokens = map(int, line.split())
        turn = [tokens_of(config.vocab_size, tokens, TURN * number + at) for at in range(TURN)]
        before, begin = io_bytes(), time.perf_counter()
        losses = [step(batches) for batches in [*turn, []]][:TURN]
        if DEVICE.type == "cuda":
            torch.cuda.synchronize()
        took = time.perf_counter() - begin
        device = torch.cuda.max_memory_allocated() / 2**30 if DEVICE.type == "cuda" else 0.0
        moved = [round((b - a) / TURN) for a, b in zip(before, io_bytes(), strict=True)]
        answer(seconds=took / TURN, losses=losses, moved=moved, peak_gib=memory_gib("VmHWM") - base, device_gib=device)


class Peer:
    """A process that steps when it is asked to."""

    def __init__(self, name: str, folder: Path, is_small: bool) -> None:
        words = [sys.executable, __file__, "--worker", name, "--store", str(folder), *(["--smoke"] if is_small else [])]
        self.name = name
        self.errors = (folder.parent / f"{name}.log").open("w")
        self.process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True
        )
        found = self.heard()
        self.refused = str(found.get("refused", ""))

    def heard(self) -> dict:
        line = self.process.stdout.readline()  # type: ignore[union-attr]
        if not line:
            status = self.process.wait()
            return {"refused": f"its process ended ({status}), see {self.errors.name}"}
        return json.loads(line)

    def step(self, number: int, tokens: int) -> dict:
        self.process.stdin.write(f"{number} {tokens}\n")  # type: ignore[union-attr]
        self.process.stdin.flush()  # type: ignore[union-attr]
        return self.heard()

    def close(self) -> None:
        self.process.stdin.close()  # type: ignore[union-attr]
        self.process.wait(60)
        self.errors.close()


def apart(one: dict, other: dict) -> list[float]:
    return [abs(a - b) for a, b in zip(one["losses"], other["losses"], strict=True)]


def rounds(peers: list[Peer], tokens: list[int], num: int) -> None:
    number = 0
    for count in tokens:
        told: dict[str, list[dict]] = {peer.name: [] for peer in peers}
        for turn in range(num + 1):
            first = turn % max(1, len(peers))
            for peer in [*peers[first:], *peers[:first]]:  # nobody always comes after the same one
                found = peer.step(number, count)
                if "refused" in found:
                    say(peer=peer.name, refused=found["refused"])
                    peers = [one for one in peers if one is not peer]
                    told.pop(peer.name)
                elif turn:
                    told[peer.name].append(found)
            number += 1
        for name, found in told.items():
            against = told.get("torch", [])
            seconds = [one["seconds"] for one in found]
            pairs = [(base["seconds"], one["seconds"]) for base, one in zip(against, found, strict=False)]
            say(
                peer=name,
                tokens=count,
                seconds=[round(one, 2) for one in seconds],
                median_s=round(statistics.median(seconds), 3),
                ratio=round(statistics.median(a / b for a, b in pairs), 3) if pairs else None,
                loss_off=max((off for a, b in zip(against, found, strict=False) for off in apart(a, b)), default=None),
                peak_gib=round(max(one["peak_gib"] for one in found), 2),
                read_written_gb=[
                    round(statistics.median(one["moved"][way] for one in found) / 1e9, 2) for way in (0, 1)
                ],
                device_gib=round(max(one["device_gib"] for one in found), 2),
                load=[round(one, 1) for one in os.getloadavg()],
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", type=Path, default=Path("/tmp/fairlead-train-bench/peers"))
    parser.add_argument("--tokens", default="512,1024")
    parser.add_argument("--num", type=int, default=5)
    parser.add_argument("--only", default=",".join(WAYS))
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--worker", choices=[*WAYS])
    args = parser.parse_args()
    if args.worker:
        work(args.worker, args.store, args.smoke)
        return
    tokens, num = ([32], 2) if args.smoke else ([int(count) for count in args.tokens.split(",")], args.num)
    shutil.rmtree(args.store, ignore_errors=True)
    args.store.parent.mkdir(parents=True, exist_ok=True)
    parts = take_apart(skeleton(model_of(args.smoke), torch.float32), GROUPS)
    say(
        params=sum(param.numel for block in parts.blocks for param in block.params),
        device=str(DEVICE),
        threads=torch.get_num_threads(),
        torch=torch.__version__,
    )
    peers = [Peer(name, args.store, args.smoke) for name in args.only.split(",")]
    for peer in peers:
        if peer.refused:
            say(peer=peer.name, refused=peer.refused)
    able = [peer for peer in peers if not peer.refused]
    rounds(able, tokens, num)
    for peer in peers:
        peer.close()
    shutil.rmtree(args.store, ignore_errors=True)


if __name__ == "__main__":
    main()

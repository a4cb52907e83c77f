"""One rank of the tests of the torch backend: RANK SIZE FILE PART. Run as a program."""

from __future__ import annotations

import contextlib
import os
import random
import sys
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

import fairlead.fabric.torch  # noqa: F401 - registers the backend
from fairlead.errors import FabricError

RANK, SIZE, FILE, PART = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8]
OPS = [dist.ReduceOp.SUM, dist.ReduceOp.MIN, dist.ReduceOp.MAX, dist.ReduceOp.PRODUCT]


def tensor(chance: random.Random, dtype: torch.dtype, rows: int) -> torch.Tensor:
    """Values of this rank; sometimes empty, sometimes not in one piece."""
    columns = chance.choice([0, 1, 3, 17, 700])
    torch.manual_seed(chance.randrange(1 << 30) + RANK)
    values = torch.randint(0, 9, (rows, columns)).to(dtype) if not dtype.is_floating_point else None
    values = torch.randn(rows, columns).to(dtype) if values is None else values
    return values.t() if chance.random() < 0.3 else values


def same(mine: torch.Tensor, theirs: torch.Tensor, what: object) -> None:
    if mine.dtype.is_floating_point:
        # another order of the sum: as far apart as roundings of SIZE values can be
        slack = 8 * SIZE * torch.finfo(mine.dtype).eps
        assert torch.allclose(mine, theirs, rtol=slack, atol=slack * 4), (what, mine, theirs)
    else:
        assert torch.equal(mine, theirs), (what, mine, theirs)


def equal(gloo: dist.ProcessGroup) -> None:
    """Each call by both backends, with the same random tensors; what the ranks choose, all choose alike."""
    for case in range(int(os.environ.get("CASES", "40"))):
        chance = random.Random(case)
        dtype, op, root = chance.choice(DTYPES), chance.choice(OPS), chance.randrange(SIZE)
        values = tensor(chance, dtype, SIZE * chance.choice([1, 2]))
        ends = []
        for group in (None, gloo):
            one, two, whole = values.clone(), values.clone(), values.clone().contiguous()
            dist.all_reduce(one, op, group=group)
            dist.broadcast(two, root, group=group)
            lists = [torch.empty_like(values) for _ in range(SIZE)]
            dist.all_gather(lists, values.clone(), group=group)
            flat = whole.flatten()
            piece = torch.empty(flat.numel() // SIZE, dtype=dtype)
            dist.reduce_scatter_tensor(piece, flat.clone(), op, group=group)
            wide = torch.empty(flat.numel() * SIZE, dtype=dtype)
            dist.all_gather_into_tensor(wide, flat, group=group)
            swapped = torch.empty_like(flat)
            dist.all_to_all_single(swapped, flat, group=group)
            to_root = flat.clone()
            dist.reduce(to_root, root, op, group=group)
            held = [torch.empty_like(flat) for _ in range(SIZE)] if root == RANK else None
            dist.gather(flat, held, root, group=group)
            given = torch.empty_like(piece)
            dist.scatter(
                given,
                list(flat.clone().chunk(SIZE))
                if root == RANK and flat.numel()
                else [torch.empty_like(piece)] * SIZE
                if root == RANK
                else None,
                root,
                group=group,
            )
            found = [one, two, *lists, piece, wide, swapped, *(held or []), given]
            ends.append(found + ([to_root] if root == RANK else []))
        for number, (mine, theirs) in enumerate(zip(*ends, strict=True)):
            same(mine, theirs, (case, dtype, op, number))
    big = torch.arange(200_001) * (RANK + 1)  # goes around the ring, in blocks that are not even
    dist.all_reduce(big)
    assert torch.equal(big, torch.arange(200_001) * (SIZE * (SIZE + 1) // 2))
    mean = torch.full((5,), float(RANK))
    dist.all_reduce(mean, dist.ReduceOp.AVG)
    assert torch.equal(mean, torch.full((5,), (SIZE - 1) / 2))
    uneven = torch.arange(SIZE * (SIZE + 1) // 2) + 100 * RANK
    out = torch.zeros(SIZE * (RANK + 1), dtype=torch.int64)
    dist.all_to_all_single(out, uneven, [RANK + 1] * SIZE, list(range(1, SIZE + 1)))
    begin = RANK * (RANK + 1) // 2
    assert out.tolist() == [100 * r + begin + i for r in range(SIZE) for i in range(RANK + 1)]


def direct(_: dist.ProcessGroup) -> None:
    """Sends beside collectives: both at once, received in another order, some before anybody asks; two groups."""
    right, left = (RANK + 1) % SIZE, (RANK - 1) % SIZE
    first, second = torch.full((70_000,), float(RANK)), torch.full((3,), -float(RANK))
    works = [dist.isend(first, right, tag=1), dist.isend(second, right, tag=2)]
    total = torch.ones(4)
    works.append(dist.all_reduce(total, async_op=True))
    here, there = torch.empty(3), torch.empty(70_000)
    dist.recv(here, left, tag=2)
    dist.recv(there, left, tag=1)
    for work in works:
        work.wait()
    assert here.tolist() == [-float(left)] * 3
    assert torch.equal(there, torch.full((70_000,), float(left)))
    assert total.tolist() == [SIZE] * 4
    pair = dist.new_group([0, SIZE - 1], backend="mrc")
    if RANK in (0, SIZE - 1):
        few = torch.tensor([RANK + 1])
        dist.all_reduce(few, group=pair)
        assert few.item() == SIZE + 1


def kinds(gloo: dist.ProcessGroup) -> None:
    """Bools, bits, lists and coalesced calls by both backends."""
    chance = torch.Generator().manual_seed(100 + RANK)
    bits = torch.randint(0, 1 << 30, (3, 50_000), generator=chance)
    flags = bits % 3 == 0
    few = [(bits[0, :n] % 1000).clone() for n in (1, 7, 300)]
    lists = [torch.full((r + 1,), 100 * RANK + r) for r in range(SIZE)]
    calls = []
    for group in (None, gloo):
        found: list[torch.Tensor] = []
        for op in (dist.ReduceOp.BAND, dist.ReduceOp.BOR, dist.ReduceOp.BXOR):
            for values in (bits.clone(), bits[0, :5].clone()):
                dist.all_reduce(values, op, group=group)
                found.append(values)
        for op in (dist.ReduceOp.MIN, dist.ReduceOp.MAX):
            values = flags.clone()
            dist.all_reduce(values, op, group=group)
            found.append(values)
        values = flags.clone()
        dist.broadcast(values, SIZE - 1, group=group)
        gathered = [torch.empty_like(flags) for _ in range(SIZE)]
        dist.all_gather(gathered, flags, group=group)
        out = torch.empty(9, dtype=torch.int64)
        dist.reduce_scatter(out, list(bits.flatten()[: 9 * SIZE].clone().chunk(SIZE)), group=group)
        swapped = [torch.empty(RANK + 1, dtype=torch.int64) for _ in range(SIZE)]
        works = [dist.all_to_all(swapped, lists, async_op=True)] if group is None else _swap(swapped, lists, group)
        for work in works:
            work.wait()
        together = [t.clone() for t in few]
        with dist._coalescing_manager(group=group, async_ops=False) if group is None else contextlib.nullcontext():
            for tensor in together:
                dist.all_reduce(tensor, group=group)
        calls.append([*found, values, *gathered, out, *swapped, *together])
    assert len(calls[0]) == len(calls[1])
    for number, (mine, theirs) in enumerate(zip(*calls, strict=True)):
        assert torch.equal(mine, theirs), (number, mine, theirs)
    wide = [torch.empty(SIZE * t.numel(), dtype=t.dtype) for t in few]
    with dist._coalescing_manager():
        for into, tensor in zip(wide, few, strict=True):
            dist.all_gather_into_tensor(into, tensor)
    pieces = [torch.empty(t.numel() // SIZE, dtype=t.dtype) for t in wide]
    with dist._coalescing_manager():
        for into, tensor in zip(pieces, wide, strict=True):
            dist.reduce_scatter_tensor(into, tensor)
    assert all(torch.equal(piece, SIZE * tensor) for piece, tensor in zip(pieces, few, strict=True))


def _swap(into: list[torch.Tensor], out: list[torch.Tensor], group: dist.ProcessGroup) -> list[dist.Work]:
    """gloo has no all_to_all of lists: the same by sends."""
    into[RANK].copy_(out[RANK])
    others = [r for r in range(SIZE) if r != RANK]
    works = [dist.isend(out[r], r, group=group) for r in others]
    return works + [dist.irecv(into[r], r, group=group) for r in others]


def sizes(_: dist.ProcessGroup) -> None:
    """Messages of another size than who receives them thinks: told, dropped, and all goes on."""
    right, left = (RANK + 1) % SIZE, (RANK - 1) % SIZE
    for size in (3, 70_000):  # with its header, and in chunks
        works = [dist.isend(torch.ones(size), right, tag=1), dist.isend(torch.full((5,), 7.0), right, tag=1)]
        if size == 3:
            time.sleep(0.5)  # kept aside before anybody asks; the others are waited for
        with pytest.raises(FabricError, match=f"rank {left} sent {4 * size} bytes where 8 were to be") as raised:
            dist.recv(torch.empty(2), left, tag=1)
        assert raised.value.code == "fabric/size-mismatch"
        here = torch.empty(5)
        dist.recv(here, left, tag=1)
        assert here.tolist() == [7.0] * 5
        for work in works:
            work.wait()


def idle(_: dist.ProcessGroup) -> None:
    """Ranks 0 and 2 talk to each other; on rank 1 nobody waits when it is killed or stopped from outside."""
    dist.barrier()
    print("going", flush=True)
    begin = time.monotonic()
    if RANK == 1:
        time.sleep(100)
    try:
        while time.monotonic() - begin < 60:
            if RANK == 0:
                dist.send(torch.ones(10), 2)
            else:
                dist.recv(torch.ones(10), 0)
            time.sleep(0.05)
    except FabricError as exc:
        print(exc.code, exc.message.split(":")[0], flush=True)
        os._exit(7)


def late(_: dist.ProcessGroup) -> None:
    """Rank 1 does not take part; the others' time is over after three seconds."""
    group = dist.new_group(backend="mrc", timeout=timedelta(seconds=3 + RANK))
    dist.barrier()
    if RANK == 1:
        time.sleep(5)
    try:
        dist.all_reduce(torch.ones(4), group=group)
    except FabricError as exc:
        print(exc.code, exc.message, flush=True)
        os._exit(7)


def leaving(_: dist.ProcessGroup) -> None:
    """A group is left right after its only collective, again and again; then all groups, and made anew."""
    for rounds in range(60):
        group = dist.new_group(backend="mrc")
        values = torch.ones(5) * (RANK + 1)
        dist.all_reduce(values, group=group)
        assert values.tolist() == [SIZE * (SIZE + 1) / 2] * 5, rounds
        dist.destroy_process_group(group)


def anew(_: dist.ProcessGroup) -> None:
    """The same with all there is."""
    for rounds in range(20):
        values = torch.ones(5)
        dist.all_reduce(values)
        assert values.tolist() == [SIZE] * 5, rounds
        dist.destroy_process_group()
        join(f"{FILE}.{rounds}")


def raising(_: dist.ProcessGroup) -> None:
    """Rank 1 raises after a collective that others may still be in."""
    try:
        dist.all_reduce(torch.ones(5))
        if RANK == 1:
            raise ValueError
        dist.all_reduce(torch.ones(5))
    except FabricError as exc:
        print(exc.code, exc.message, flush=True)
        sys.exit(7)


def paused(_: dist.ProcessGroup) -> None:
    """Rank 1 is stopped from outside in the middle, and let go on."""
    dist.barrier()
    print("going", flush=True)
    begin = time.monotonic()
    going = torch.ones(100_000)
    try:
        while going[0]:
            going.fill_(time.monotonic() - begin < float(os.environ["GOING_S"]))
            dist.all_reduce(going, dist.ReduceOp.MIN)
    except FabricError as exc:
        print(exc.code, exc.message, flush=True)
        sys.exit(7)


def queued(_: dist.ProcessGroup) -> None:
    """Each call is done in its time, though the last waits for longer than that behind those before; its time is 2.5 s.

    A receive may be asked for as long before it is waited for.
    """
    group = dist.new_group(backend="mrc", timeout=timedelta(seconds=2.5))
    dist.barrier()
    got = torch.zeros(1)
    early = dist.irecv(got, 1 - RANK, group=group)
    works = []
    for _ in range(4):
        time.sleep(RANK)
        works.append(dist.all_reduce(torch.ones(4), group=group, async_op=True))
    for work in works:
        work.wait()
    dist.isend(torch.ones(1), 1 - RANK, group=group).wait()
    early.wait()
    assert got.item() == 1
    if RANK == 0:
        with pytest.raises(FabricError, match=r"not done after 2\.5 s; rank 0 waits for rank 1"):
            dist.recv(got, 1, group=group)
    else:
        time.sleep(4)


def splits(gloo: dist.ProcessGroup) -> None:
    """Pieces that are none: refused here and now, as by gloo, and the group lives on."""
    for group, refusal in ((None, FabricError), (gloo, RuntimeError)):
        for out, into, how in ((5, 5, ()), (SIZE, 5, ()), (SIZE, 5, ([1] * SIZE, [1] * SIZE)), (1, 1, ([1], [1]))):
            with pytest.raises(refusal) as raised:
                dist.all_to_all_single(torch.zeros(out), torch.ones(into), *how, group=group)
            assert group is gloo or raised.value.code == "fabric/bad-splits"
            values = torch.ones(3)
            dist.all_reduce(values, group=group)
            assert values.tolist() == [SIZE] * 3


def train(gloo: dist.ProcessGroup) -> None:
    """DDP and FSDP2 end with the parameters that gloo gives."""
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    def model() -> torch.nn.Module:
        torch.manual_seed(3)
        return torch.nn.Sequential(torch.nn.Linear(64, 96), torch.nn.ReLU(), torch.nn.Linear(96, 7))

    def steps(net: torch.nn.Module) -> list[float]:
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        torch.manual_seed(RANK)
        losses = []
        for _ in range(4):
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(net(torch.randn(8, 64)), torch.ones(8, 7))
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    expected = steps(DistributedDataParallel(model(), process_group=gloo))
    assert expected[-1] < expected[0]
    mine = steps(DistributedDataParallel(model()))
    torch.testing.assert_close(mine, expected, rtol=1e-4, atol=1e-5)
    net = model()
    fully_shard(net, mesh=DeviceMesh.from_group(dist.group.WORLD, "cpu"))
    torch.testing.assert_close(steps(net), expected, rtol=1e-4, atol=1e-5)


def killed(_: dist.ProcessGroup) -> None:
    """Rank 1 is killed from outside in the middle of these."""
    print("going", flush=True)
    begin = time.monotonic()
    try:
        while time.monotonic() - begin < 60:
            dist.all_reduce(torch.ones(100_000))
    except FabricError as exc:
        print(exc.code, exc.message.split(":")[0], flush=True)
        os._exit(7)


def unlike(_: dist.ProcessGroup) -> None:
    """Rank 0 calls something else than the others."""
    try:
        if RANK == 0:
            dist.broadcast(torch.ones(9), 0)
            dist.all_reduce(torch.ones(9))
        else:
            dist.all_reduce(torch.ones(9))
            dist.all_reduce(torch.ones(9))
    except FabricError as exc:
        print(exc.code, flush=True)
        os._exit(7)


def join(file: str) -> None:
    limit = timedelta(seconds=float(os.environ.get("TIMEOUT_S", "120")))
    dist.init_process_group("mrc", init_method=f"file://{file}", rank=RANK, world_size=SIZE, timeout=limit)


join(FILE)
globals()[PART](dist.new_group(backend="gloo") if PART in ("equal", "train", "kinds", "splits") else None)
dist.barrier()
dist.destroy_process_group()
print("done", flush=True)

"""The process group `mrc`: torch's collectives as schedules over the peers of a group.

Calls return at once with a Work; one event loop does them, collectives of a group one after another in the order of the
calls, sends and receives beside them.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import torch
import torch.distributed as dist

from fairlead.errors import FabricError
from fairlead.fabric.torch import schedules
from fairlead.fabric.torch.clock import Clock
from fairlead.fabric.torch.membership import Membership
from fairlead.fabric.torch.peers import COLLECTIVE, DIRECT, Consume, copier
from fairlead.fabric.torch.reducing import combiner, finisher
from fairlead.fabric.torch.work import Work

RING_BYTES = 64 << 10
"""From here on a buffer goes around a ring; below, the fewer steps of halving and of trees count more."""


def create(options: Any, _: Any = None) -> MrcGroup:
    """What torch calls for `init_process_group("mrc")` and `new_group`."""
    return MrcGroup(options.store, options.group_rank, options.group_size, options.timeout, options.group_id)


def _flat(tensor: Any) -> Any:
    return tensor.detach().contiguous().view(-1)


def _bytes(tensor: Any) -> Any:
    return tensor.view(torch.uint8)


class MrcGroup(Membership):
    """A torch.distributed process group for CPU tensors."""

    def getBackendName(self) -> str:  # noqa: N802 - torch's
        """`mrc`."""
        return "mrc"

    async def _run(self, key: int, steps: Sequence[schedules.Step], out: list[Any], into: list[Any], op: Any) -> None:
        """A schedule over blocks, which are flat tensors; empty ones do not travel."""
        for step in steps:
            jobs = []
            for send in step.sends:
                for block in out[send.begin : send.end]:
                    if block.numel():
                        jobs.append(self._peers[send.to].send(COLLECTIVE, key, _bytes(block)))  # noqa: PERF401
            for take in step.takes:
                for block in into[take.begin : take.end]:
                    if block.numel():
                        how = combiner(block, op) if take.combines else copier(_bytes(block))
                        jobs.append(self._peers[take.source].take(key, block.nbytes, how))
            if len(jobs) == 1:
                await jobs[0]
            elif jobs:
                async with _Together() as group:
                    for job in jobs:
                        group.create_task(job)

    def _collective(self, result: list[Any], job: Callable[[int], Coroutine[Any, Any, None]]) -> Work:
        key = self._num << 16 | zlib.crc32(job.__qualname__.encode()) & 0xFFFF  # which call it is, and of what kind
        self._num += 1

        async def in_turn(clock: Clock) -> None:
            async with self._turn:
                clock.start()  # not before, as in gloo: others of this rank are not what it waits for
                await job(key)

        return self._start(result, in_turn)

    def allreduce(self, tensors: Any, opts: Any = None) -> Work:
        """Ring from RING_BYTES on, else recursive halving and doubling."""
        tensors = _listed(tensors)
        op = _op(opts)

        async def job(key: int) -> None:
            for tensor in tensors:
                flat = _flat(tensor)
                is_ring = flat.nbytes >= RING_BYTES
                num = self._size if is_ring else schedules.power_below(self._size)
                blocks = _cut(flat, num)
                schedule = schedules.ring_all_reduce if is_ring else schedules.halving_all_reduce
                await self._run(key, schedule(self._rank, self._size), blocks, blocks, op)
                finisher(flat, op, self._size)
                _back(flat, tensor)

        return self._collective(tensors, job)

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> Work:
        """One after another."""
        return self.allreduce(tensors, opts)

    def broadcast(self, tensors: Any, opts: Any = None) -> Work:
        """Scatter and ring from RING_BYTES on, else a tree."""
        root = opts.rootRank if opts else 0
        tensors = _listed(tensors)

        async def job(key: int) -> None:
            for tensor in tensors:
                flat = _flat(tensor)
                is_ring = flat.nbytes >= RING_BYTES
                blocks = _cut(flat, self._size if is_ring else 1)
                schedule = schedules.spread_broadcast if is_ring else schedules.tree_broadcast
                await self._run(key, schedule(self._rank, self._size, root), blocks, blocks, None)
                _back(flat, tensor)

        return self._collective(tensors, job)

    def reduce(self, tensors: Any, opts: Any) -> Work:
        """To one rank; the tensors of the others stay as they are."""
        tensors = _listed(tensors)

        async def job(key: int) -> None:
            for tensor in tensors:
                flat = _flat(tensor).clone()
                blocks = _cut(flat, self._size)
                steps = schedules.reduce(self._rank, self._size, opts.rootRank)
                await self._run(key, steps, blocks, blocks, opts.reduceOp)
                if self._rank == opts.rootRank:
                    finisher(flat, opts.reduceOp, self._size)
                    tensor.detach().copy_(flat.view(tensor.shape))

        return self._collective(tensors, job)

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        """Around the ring."""
        pairs = [(outputs, inputs)] if isinstance(inputs, torch.Tensor) else list(zip(outputs, inputs, strict=True))

        async def job(key: int) -> None:
            for outs, tensor in pairs:
                blocks = [_flat(out) for out in outs]
                blocks[self._rank].copy_(_flat(tensor))
                await self._run(key, schedules.ring_all_gather(self._rank, self._size), blocks, blocks, None)
                _all_back(blocks, outs)

        return self._collective(outputs, job)

    def all_gather_single(self, output: Any, tensor: Any, opts: Any = None) -> Work:
        """Into one tensor, a piece a rank."""
        return self.all_gather_single_coalesced([output], [tensor], opts)

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        """One after another."""

        async def job(key: int) -> None:
            for output, tensor in zip(outputs, inputs, strict=True):
                flat = _flat(output)
                blocks = _cut(flat, self._size)
                blocks[self._rank].copy_(_flat(tensor))
                await self._run(key, schedules.ring_all_gather(self._rank, self._size), blocks, blocks, None)
                _back(flat, output)

        return self._collective(outputs, job)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def allgather_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        """`outputs[r]` are rank r's inputs."""
        return self.allgather([list(outs) for outs in zip(*outputs, strict=True)], inputs, opts)

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        """Around the ring; the inputs stay as they are."""
        outputs = _listed(outputs)
        lists = [inputs] if isinstance(inputs[0], torch.Tensor) else inputs
        op = _op(opts)

        async def job(key: int) -> None:
            for output, tensors in zip(outputs, lists, strict=True):
                blocks = [_flat(tensor).clone() for tensor in tensors]
                await self._reduce_scatter(key, output, blocks, op)

        return self._collective(outputs, job)

    async def _reduce_scatter(self, key: int, output: Any, blocks: list[Any], op: Any) -> None:
        await self._run(key, schedules.ring_reduce_scatter(self._rank, self._size), blocks, blocks, op)
        finisher(blocks[self._rank], op, self._size)
        output.detach().copy_(blocks[self._rank].view(output.shape))

    def reduce_scatter_single(self, output: Any, tensor: Any, opts: Any = None) -> Work:
        """From one tensor, a piece a rank."""
        return self.reduce_scatter_single_coalesced([output], [tensor], opts)

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        """One after another."""

        async def job(key: int) -> None:
            for output, tensor in zip(outputs, inputs, strict=True):
                await self._reduce_scatter(key, output, _cut(_flat(tensor).clone(), self._size), _op(opts))

        return self._collective(outputs, job)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def alltoall(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        """Pair by pair."""

        async def job(key: int) -> None:
            out, into = [_flat(t) for t in inputs], [_flat(t) for t in outputs]
            into[self._rank].copy_(out[self._rank])
            await self._run(key, schedules.all_to_all(self._rank, self._size), out, into, None)
            _all_back(into, outputs)

        return self._collective(outputs, job)

    def all_to_all_single(self, output: Any, tensor: Any, out_splits: Any, in_splits: Any, opts: Any = None) -> Work:
        """The same along the first dimension of one tensor each; no splits: even ones. FabricError: they do not fit."""
        _check_splits(output, out_splits, self._size)
        _check_splits(tensor, in_splits, self._size)

        async def job(key: int) -> None:
            flat = _flat(output)
            out, into = (
                _split(_flat(tensor), tensor, in_splits, self._size),
                _split(flat, output, out_splits, self._size),
            )
            into[self._rank].copy_(out[self._rank])
            await self._run(key, schedules.all_to_all(self._rank, self._size), out, into, None)
            _back(flat, output)

        return self._collective([output], job)

    alltoall_base = all_to_all_single

    def gather(self, outputs: Any, inputs: Any, opts: Any) -> Work:
        """To one rank."""

        async def job(key: int) -> None:
            out = [_flat(inputs[0])] * self._size
            into = [_flat(t) for t in outputs[0]] if self._rank == opts.rootRank else []
            if into:
                into[self._rank].copy_(out[0])
            await self._run(key, (schedules.gather(self._rank, self._size, opts.rootRank),), out, into, None)
            if into:
                _all_back(into, outputs[0])

        return self._collective(outputs, job)

    def scatter(self, outputs: Any, inputs: Any, opts: Any) -> Work:
        """From one rank."""

        async def job(key: int) -> None:
            flat = _flat(outputs[0])
            out = [_flat(t) for t in inputs[0]] if self._rank == opts.rootRank else []
            if out:
                flat.copy_(out[self._rank])
            steps = (schedules.scatter(self._rank, self._size, opts.rootRank),)
            await self._run(key, steps, out, [flat] * self._size, None)
            _back(flat, outputs[0])

        return self._collective(outputs, job)

    def barrier(self, opts: Any = None) -> Work:
        """A sum of one number."""
        return self.allreduce([torch.zeros(max(self._size, 1))])

    def send(self, tensors: Any, to: int, tag: int) -> Work:
        """Done when the peer's mailbox has all of it. As in gloo its time begins as somebody waits for it."""
        flat = _flat(tensors[0])
        return self._start(tensors, lambda _: self._peers[to].send(DIRECT, tag, _bytes(flat)), waits=True)

    def recv(self, tensors: Any, source: int, tag: int) -> Work:
        """The oldest of its tag. Its time begins as somebody waits for it."""

        async def job(_: Clock) -> None:
            flat = _flat(tensors[0])
            into: Consume = copier(_bytes(flat)) if flat.numel() else _nothing
            await self._peers[source].receive(tag, flat.nbytes, into)
            _back(flat, tensors[0])

        return self._start(tensors, job, waits=True)


class _Together(asyncio.TaskGroup):
    """A task group whose first error comes out as itself."""

    async def __aexit__(self, *args: object) -> None:
        try:
            await super().__aexit__(*args)  # type: ignore[arg-type]
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None


def _nothing(_: int, __: Any) -> None:
    return


def _op(opts: Any) -> Any:
    return opts.reduceOp if opts else dist.ReduceOp.SUM


def _listed(tensors: Any) -> list[Any]:
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)


def _cut(flat: Any, num: int) -> list[Any]:
    edges = schedules.bounds(flat.numel(), num)
    return [flat[edges[i] : edges[i + 1]] for i in range(num)]


def _check_splits(tensor: Any, sizes: Sequence[int], num: int) -> None:
    rows = tensor.shape[0] if tensor.dim() else 1
    if (len(sizes) != num or sum(sizes) != rows) if sizes else rows % num:
        cut = f"{len(sizes)} pieces of {sum(sizes)} rows in all" if sizes else "even pieces"
        raise FabricError(
            "fabric/bad-splits",
            f"a tensor of {rows} rows cannot be cut into {cut} for {num} ranks",
            hint="give a piece for each rank, all rows together, or a first dimension that the number of ranks divides",
        )


def _split(flat: Any, tensor: Any, sizes: Sequence[int], num: int) -> list[Any]:
    if not sizes:
        return _cut(flat, num)
    row = flat.numel() // max(tensor.shape[0], 1)
    return list(flat.split([size * row for size in sizes]))


def _back(flat: Any, tensor: Any) -> None:
    """Where the tensor did not lie in one piece, `flat` was a copy."""
    if flat.data_ptr() != tensor.data_ptr():
        tensor.detach().copy_(flat.view(tensor.shape))


def _all_back(flats: Sequence[Any], tensors: Sequence[Any]) -> None:
    for flat, tensor in zip(flats, tensors, strict=True):
        _back(flat, tensor)

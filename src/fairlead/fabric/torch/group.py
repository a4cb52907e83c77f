"""The process group `mrc`: torch's collectives as schedules over the peers of a group.

Calls return at once with a Work; one event loop does them, collectives of a group one after another in the order of the
calls, sends and receives beside them. A rank that is lost ends everything of its group, at every rank, with
`fabric/rank-lost` that names it.
"""

from __future__ import annotations

import asyncio
import contextlib
import zlib
from collections.abc import Callable, Coroutine, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from fairlead.errors import FabricError
from fairlead.fabric.torch import schedules
from fairlead.fabric.torch.meeting import meet, process
from fairlead.fabric.torch.peers import COLLECTIVE, DIRECT, Consume, Says, copier, lost
from fairlead.fabric.torch.reducing import combiner, finisher
from fairlead.fabric.torch.work import Work

RING_BYTES = 64 << 10
"""From here on a buffer goes around a ring; below, the fewer steps of halving and of trees count more."""
LOOK_S = 0.2
LIVES_S = 5.0
"""So often a rank writes to every other one, that also one on which nobody waits is found when it answers no more."""
GOODBYE_S = 2.0
TOLD_S = 1.0
"""So long a failed call waits at most for the others to have heard why."""
HARMLESS = frozenset({"fabric/size-mismatch"})
"""Errors of one call that leave the group as it was."""


def create(options: Any, _: Any = None) -> MrcGroup:
    """What torch calls for `init_process_group("mrc")` and `new_group`."""
    return MrcGroup(options.store, options.group_rank, options.group_size, options.timeout, options.group_id)


def _flat(tensor: Any) -> Any:
    return tensor.detach().contiguous().view(-1)


def _bytes(tensor: Any) -> Any:
    return tensor.view(torch.uint8)


class MrcGroup(dist.ProcessGroup):
    """A torch.distributed process group for CPU tensors."""

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta, name: str) -> None:
        super().__init__(rank, size)
        self._rank, self._size, self._name = rank, size, name
        self._limit_s = timeout.total_seconds()
        self._process = process()
        self._peers, self._queue = meet(store, rank, size, self._limit_s)
        self._by_qp = {peer.qp.qp_num: peer for peer in self._peers.values()}
        self._turn = asyncio.Lock()
        self._num = 0
        self._error: FabricError | None = None
        self._is_open = True
        self._lives_at = 0.0
        self._told: list[asyncio.Future[None]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._sorters: list[asyncio.Task[None]] = []
        self._loop = self._process.loop
        self._process.groups.append(self)
        self._loop.call_soon_threadsafe(self._begin)

    # --- the loop's side ---------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        self._loop.add_reader(self._queue.fileno(), self._drain)
        self._sorters = [self._loop.create_task(self._sort(peer)) for peer in self._peers.values()]
        self._look()

    async def _sort(self, peer: Any) -> None:
        with contextlib.suppress(FabricError):  # whoever waits for the peer is told by `_fail`
            await peer.sort()

    def _drain(self) -> None:
        for done in self._queue.wait(0, 1024):
            peer = self._by_qp[done.qp_num]
            if said := peer.on(done):
                self._hear(peer.rank, *said)

    def _hear(self, teller: int, what: Says, rank: int) -> None:
        """Another rank gives the group up: say who, and why."""
        own = f"; this rank waits for {waited}" if (waited := self._waited()) else ""
        match what:
            case Says.LOST:
                self._fail(lost(rank, None, teller), None)
            case Says.GIVES_UP:
                for_whom = f" waiting for rank {rank}" if rank != teller else ""
                error = FabricError(
                    "fabric/collective-timeout",
                    f"rank {teller} gave up{for_whom}, as its time was over{own}",
                    hint=f"see what rank {rank} does, or give the group a longer timeout",
                )
                self._fail(error, None)
            case _:
                error = FabricError(
                    "fabric/rank-lost",
                    f"rank {teller} gave up: what came from rank {rank} does not fit its call{own}",
                    hint=f"look at the error of rank {teller}; all ranks must call the same collectives in one order",
                )
                self._fail(error, None)

    def _waited(self) -> str:
        """Whom this rank waits for, in words."""
        ranks = [str(p.rank) for p in self._peers.values() if p.num_awaited]
        return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(ranks)}" if ranks else ""

    def _look(self) -> None:
        """Now and then: has a peer ended without a word, or one that somebody waits for?"""
        if not self._is_open:
            return
        self._loop.call_later(LOOK_S, self._look)
        now = self._loop.time()
        if now >= self._lives_at and self._error is None:
            self._lives_at = now + LIVES_S
            self._tell(Says.LIVES, 0)
        self._find_lost()

    def _find_lost(self) -> None:
        """Peers whose queue pair has failed since the last look."""
        for peer in self._peers.values():
            if peer.error is None and (error := peer.qp.error) is not None:
                self._drain()
                peer.error = error
                if not peer.has_left:
                    self._fail(lost(peer.rank, error), Says.LOST, peer.rank)
                peer.wake()

    def _fail(self, error: FabricError, what: Says | None, rank: int = 0) -> None:
        """The group is over; the others are told what, but where they know."""
        if self._error is not None:
            return
        self._error = error
        if what is not None:
            self._tell(what, rank)
        current = asyncio.current_task()
        for task in self._tasks:
            if task is not current:
                task.cancel()

    def _tell(self, what: Says, rank: int) -> None:
        """Say it to all that can hear."""
        for peer in self._peers.values():
            if not (peer.has_left or peer.error or (what is Says.LOST and peer.rank == rank)):
                with contextlib.suppress(FabricError):
                    told = peer.tell(what, rank)
                    if what is not Says.LIVES:
                        self._told.append(told)

    def _start(self, result: list[Any], job: Callable[[], Coroutine[Any, Any, None]]) -> Work:
        work = Work(result)

        async def run() -> None:
            error: BaseException | None = None
            try:
                if self._error:
                    raise self._error  # noqa: TRY301
                async with asyncio.timeout(self._limit_s or None):
                    await job()
            except asyncio.CancelledError:
                error = self._error or FabricError(
                    "fabric/closed", "the process group was destroyed", hint="wait for its work before"
                )
            except TimeoutError:
                waited = self._waited()
                error = FabricError(
                    "fabric/collective-timeout",
                    f"not done after {self._limit_s:g} s; rank {self._rank} waits for {waited or 'room at the others'}",
                    hint="see what those ranks do, or give the group a longer timeout",
                )
                self._fail(error, Says.GIVES_UP, self._first_awaited())
            except BaseException as exc:  # noqa: BLE001 - the caller of wait() is told
                error = exc
                if isinstance(exc, FabricError) and exc.code not in HARMLESS:
                    self._find_lost()  # a queue pair that has just failed is the cause, where there is one
                    self._fail(exc, Says.FAILS, self._first_awaited())
                    error = self._error
            if error is not None and self._told:  # a program may end as soon as it knows
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait(self._told, timeout=TOLD_S)
            work.finish(error)

        def begin() -> None:
            task = self._loop.create_task(run())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        if not self._is_open:
            raise FabricError("fabric/closed", "the process group was destroyed", hint="make a new one")
        self._loop.call_soon_threadsafe(begin)
        return work

    def _first_awaited(self) -> int:
        """A rank that this one waits for; itself, if there is none."""
        return next((p.rank for p in self._peers.values() if p.num_awaited), self._rank)

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

        async def in_turn() -> None:
            async with self._turn:
                await job(key)

        return self._start(result, in_turn)

    # --- torch's side ------------------------------------------------------------------------------------------------

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
        """The same along the first dimension of one tensor each; no splits: even ones."""

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
        """Done when the peer's mailbox has all of it."""
        flat = _flat(tensors[0])
        return self._start(tensors, lambda: self._peers[to].send(DIRECT, tag, _bytes(flat)))

    def recv(self, tensors: Any, source: int, tag: int) -> Work:
        """The oldest of its tag."""

        async def job() -> None:
            flat = _flat(tensors[0])
            into: Consume = copier(_bytes(flat)) if flat.numel() else _nothing
            await self._peers[source].receive(tag, flat.nbytes, into)
            _back(flat, tensors[0])

        return self._start(tensors, job)

    # --- what else torch asks ----------------------------------------------------------------------------------------

    def getBackendName(self) -> str:  # noqa: N802 - torch's
        """`mrc`."""
        return "mrc"

    @property
    def group_name(self) -> str:
        """By which torch finds it."""
        return self._name

    def set_timeout(self, timeout: timedelta) -> None:
        """For calls from now on."""
        self._limit_s = timeout.total_seconds()

    def shutdown(self) -> None:
        """Leave: the others are told, so that it is no loss to them."""
        if not self._is_open:
            return
        self._is_open = False
        asyncio.run_coroutine_threadsafe(self._leave(), self._loop).result()
        for peer in self._peers.values():
            peer.qp.close()
            self._process.context.deregister(peer.region)
        self._queue.close()
        self._process.groups.remove(self)

    abort = shutdown

    async def _leave(self) -> None:
        told = []
        for peer in self._peers.values():
            if not (peer.has_left or peer.error or self._error):
                with contextlib.suppress(FabricError):
                    told.append(peer.tell(Says.LEAVES))
        if told:
            await asyncio.wait(told, timeout=GOODBYE_S)
        tasks = [*self._tasks, *self._sorters]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._loop.remove_reader(self._queue.fileno())


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

"""Runs each reader in a child of its own, under a time limit: one stuck driver costs one answer, not the probe.

A child in uninterruptible sleep cannot even be killed: it is left to the kernel and its answer becomes a hole. Each
child leads a process group, so that what it started dies with it, and carries an alarm, so that it ends when this
program is killed. A child holds none of the probe's own files: a stuck one must not keep the pipe to the other side
open.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import time
from typing import Any, Callable, Iterator

from fairlead.probe.readers.tree import Hole, Tree, hole

WIDTH = 6
"""Children at work at one time; bounds memory, and is enough to wait for a slow command while the others read files."""

MAX_ANSWER = 16 << 20


class Reader:
    """One reading function: where its answer goes, how long it may take, and, if it runs once per item, which items."""

    def __init__(
        self,
        name: str,
        read: Callable[..., dict[str, Any]],
        limit_s: float,
        at: tuple[str, ...],
        each: Callable[[Tree], list[str]] | None = None,
    ) -> None:
        self.name, self.read, self.limit_s, self.at, self.each = name, read, limit_s, at, each


class Job:
    """One run of a reader: for the whole machine, or for one item (`args`)."""

    def __init__(self, reader: Reader, keys: tuple[str, ...], args: tuple[str, ...]) -> None:
        self.reader, self.keys, self.args = reader, keys, args
        self.started = self.deadline = 0.0
        self.pid, self.size = 0, 0
        self.parts: list[bytes] = []

    @property
    def title(self) -> str:
        """What the document calls it."""
        return " ".join((self.reader.name, *self.args))


def gather(tree: Tree, jobs: list[Job], limit_s: float) -> Iterator[tuple[Job, dict[str, Any], float]]:
    """Run all jobs; yields each with its answer `{"facts", "sources", "kept"}` or `{"hole"}`, and the seconds it took.

    Everything ends within `limit_s`: what has not answered by then is a hole.
    """
    end = time.monotonic() + limit_s
    waiting = list(reversed(jobs))
    running: dict[int, Job] = {}
    poll = select.poll()
    while waiting or running:
        now = time.monotonic()
        while waiting and len(running) < WIDTH and now < end:
            job = waiting.pop()
            job.started, job.deadline = now, min(now + job.reader.limit_s, end)
            handle = _start(tree, job, end - now)
            running[handle] = job
            poll.register(handle, select.POLLIN)
        if now >= end:
            for job in waiting:
                yield job, {"hole": hole("no time was left to read it")}, 0.0
            waiting = []
        nearest = min((job.deadline for job in running.values()), default=now)
        for handle, _ in poll.poll(max(0.0, nearest - now) * 1000 + 1) if running else []:
            job = running[handle]
            part = os.read(handle, 1 << 16)
            job.parts.append(part)
            job.size += len(part)
            if not part or job.size > MAX_ANSWER:
                answer = _answer(job)
                _let_go(poll, running, handle)
                yield job, answer, time.monotonic() - job.started
        now = time.monotonic()
        for handle, job in list(running.items()):
            if now >= job.deadline:
                # what is ready to run and finds no processor is not stuck
                job.deadline = min(job.started + job.reader.limit_s * crowd(), end)
            if now >= job.deadline:
                _let_go(poll, running, handle)
                why = "no answer within %.3g s" % (job.deadline - job.started)
                yield job, {"hole": hole(why, "reader " + job.title)}, now - job.started


def crowd() -> float:
    """How many programs there are to a processor just now: on a busy node all takes that many times as long."""
    try:
        with open("/proc/loadavg") as file:
            running = int(file.read().split()[3].partition("/")[0])
    except (OSError, ValueError, IndexError):
        return 1.0
    return max(1.0, running / (os.cpu_count() or 1))


def _start(tree: Tree, job: Job, left_s: float) -> int:
    """Fork a child for a job; returns the pipe its answer comes through."""
    here, there = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.setsid()
            null = os.open(os.devnull, os.O_RDWR)
            for number in (0, 1, 2):
                os.dup2(null, number)
            os.closerange(3, there)
            os.closerange(there + 1, 1024)
            signal.alarm(int(left_s) + 2)
            _send(there, work(tree, job))
            status = 0
        finally:
            os._exit(status)
    os.close(there)
    job.pid = pid
    return here


def work(tree: Tree, job: Job) -> dict[str, Any]:
    """A job's answer, whatever happens in its reader."""
    tree.sources = {}
    try:
        facts = job.reader.read(tree, *job.args)
    except Hole as missing:
        return {"hole": hole(missing.why, missing.source), "kept": tree.kept}
    except Exception as error:
        return {
            "hole": hole("the reader failed: %s: %s" % (type(error).__name__, error), "reader " + job.title),
            "kept": tree.kept,
        }
    return {"facts": facts, "sources": tree.sources, "kept": tree.kept}


def _send(handle: int, answer: dict[str, Any]) -> None:
    data = memoryview(json.dumps(answer).encode("ascii"))
    while data:
        data = data[os.write(handle, data) :]


def _answer(job: Job) -> dict[str, Any]:
    try:
        answer = json.loads(b"".join(job.parts))
    except ValueError:
        is_long = job.size > MAX_ANSWER
        why = "answers more than %d bytes" % MAX_ANSWER if is_long else "its process ended without an answer"
        return {"hole": hole(why, "reader " + job.title)}
    return answer if isinstance(answer, dict) else {"hole": hole("answers no facts", "reader " + job.title)}


def _let_go(poll: Any, running: dict[int, Job], handle: int) -> None:
    """Forget a child: end it and what it started if it still runs, and reap it if it can be reaped."""
    job = running.pop(handle)
    poll.unregister(handle)
    os.close(handle)
    with contextlib.suppress(OSError):
        os.killpg(job.pid, signal.SIGKILL)
    with contextlib.suppress(OSError):
        # a killed child is gone in no time unless it sleeps in the kernel; then init reaps it later
        for _ in range(20):
            if os.waitpid(job.pid, os.WNOHANG)[0]:
                break
            time.sleep(0.001)

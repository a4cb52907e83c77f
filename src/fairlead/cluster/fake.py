"""A cluster without nodes, for unit tests of what stands on top: scripted answers, a clock that only jumps.

    >>> async def demo():
    ...     fake = FakeCluster(lambda node, command: Answer(rc=3, delay_s=40.0) if node == "n2" else Answer("hi"))
    ...     return [str(r) for r in await fake.run("n[1-3]", ["true"], limit_s=10)], fake.clock_s
    >>> import asyncio; asyncio.run(demo())
    (['n1  done', 'n2  timeout  ran into the limit of 10 s', 'n3  done'], 10.0)

It keeps the promises of AsyncCluster: a result for every node, limits, one failing rank that stops its group.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fairlead.base.nodeset import NodeSet
from fairlead.base.units import duration
from fairlead.cluster.outputs import exit_text
from fairlead.cluster.protocol import DEFAULT_KEEP_BYTES, AsyncCluster, Command, Line, OnLine, Output, Result, State


@dataclass(frozen=True, slots=True)
class Answer:
    """What one command, rank or copy shall do."""

    stdout: str = ""
    stderr: str = ""
    rc: int = 0
    delay_s: float = 0.0
    """When it ends, counted from the call."""
    state: State | None = None
    """For what an exit status cannot say: unreachable."""
    error: str = ""


Script = Callable[[str, Command], Answer]


class FakeCluster(AsyncCluster):
    """An AsyncCluster that asks `script` instead of nodes, and never waits."""

    def __init__(self, script: Script = lambda _node, _command: Answer()) -> None:
        self.script = script
        self.clock_s = 0.0
        self.calls: list[tuple[str, Command]] = []
        """Every command that was run: node and command, ranks with their environment."""
        self.files: dict[tuple[str, str], bytes] = {}
        """What was pushed, and what can be fetched: (node, path) to content."""
        self.last: list[Result] = []

    async def run_each(
        self,
        commands: Mapping[str, Command],
        *,
        limit_s: float,
        on_line: OnLine | None = None,
        keep_bytes: int = DEFAULT_KEEP_BYTES,
    ) -> list[Result]:
        """Each node its own command."""
        results = [self._one(node, commands[node], limit_s) for node in NodeSet(commands)]
        return self._ended(results, on_line)

    async def run_ranks(
        self,
        nodes: NodeSet | str,
        command: Command | Sequence[str],
        *,
        per_node: int,
        limit_s: float,
        on_line: OnLine | None = None,
        keep_bytes: int = DEFAULT_KEEP_BYTES,
        stop_on_failure: bool = True,
    ) -> list[Result]:
        """`per_node` copies on every node; the script sees RANK and LOCAL_RANK in the command's environment."""
        one = Command.of(command)
        results = []
        for rank, (node, local) in enumerate((n, i) for n in NodeSet(nodes) for i in range(per_node)):
            env = {**one.env, "RANK": str(rank), "LOCAL_RANK": str(local)}
            result = self._one(node, replace(one, env=env), limit_s)
            results.append(replace(result, rank=rank, local_rank=local))
        first_s = min((r.duration_s for r in results if not r.ok), default=None)
        if stop_on_failure and first_s is not None:
            results = [
                replace(r, state=State.CANCELLED, rc=None, error="stopped", duration_s=first_s)
                if r.duration_s > first_s
                else r
                for r in results
            ]
        return self._ended(results, on_line)

    async def push(
        self,
        nodes: NodeSet | str,
        source: Path,
        target: str,
        *,
        limit_s: float,
        mode: int = 0o644,
        addresses: Mapping[str, str] | None = None,
    ) -> list[Result]:
        """Keep the file's content for every node that the script lets succeed."""
        results = [self._one(n, Command(argv=("push", str(source), target)), limit_s) for n in NodeSet(nodes)]
        self._keep(source, target, results)
        return self._ended(results, None)

    async def fetch(
        self, nodes: NodeSet | str, source: str, into: Path, *, limit_s: float, max_bytes: int
    ) -> list[Result]:
        """Write what `files` holds."""
        results = []
        for node in NodeSet(nodes):
            result = self._one(node, Command(argv=("fetch", source, str(into))), limit_s)
            content = self.files.get((node, source))
            if result.ok and content is None:
                result = replace(result, state=State.FAILED, rc=1, error=f"{source}: No such file or directory")
            elif result.ok and content is not None:
                path = into / node / Path(source).name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
            results.append(result)
        return self._ended(results, None)

    async def close(self) -> None:
        """Nothing is held."""

    def _keep(self, source: Path, target: str, results: Sequence[Result]) -> None:
        contents = (
            {target: source}
            if source.is_file()
            else {f"{target}/{path.relative_to(source)}": path for path in source.rglob("*") if path.is_file()}
        )
        for name, path in contents.items():
            self.files |= {(r.node, name): path.read_bytes() for r in results if r.ok}

    def _one(self, node: str, command: Command, limit_s: float) -> Result:
        self.calls.append((node, command))
        answer = self.script(node, command)
        out, err = (Output(head=text.encode(), num_bytes=len(text.encode())) for text in (answer.stdout, answer.stderr))
        if answer.delay_s > limit_s:
            state, rc, error = State.TIMEOUT, None, f"ran into the limit of {duration(limit_s)}"
        elif answer.state is not None:
            state, rc, error = answer.state, None, answer.error
        elif answer.rc:
            state, rc, error = State.FAILED, answer.rc, answer.error or exit_text(answer.rc)
        else:
            state, rc, error = State.DONE, 0, ""
        took_s = min(answer.delay_s, limit_s)
        return Result(node=node, state=state, rc=rc, stdout=out, stderr=err, duration_s=took_s, error=error)

    def _ended(self, results: list[Result], on_line: OnLine | None) -> list[Result]:
        self.clock_s += max((r.duration_s for r in results), default=0.0)
        for result in sorted(results, key=lambda r: r.duration_s) if on_line else ():
            for stream, output in (("stdout", result.stdout), ("stderr", result.stderr)):
                for text in output.text.splitlines():
                    assert on_line is not None
                    on_line(Line(result.node, result.rank, stream, text))
        self.last = results
        return results

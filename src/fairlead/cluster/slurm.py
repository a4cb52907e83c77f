"""Nodes reached through Slurm: one job holds them, one step a node runs what is asked.

Inside a job (SLURM_JOB_ID), that job is used. Outside, a batch script that only holds the nodes is written, submitted
and cancelled at the end; it stays where it was written, for people to read and to submit by hand. A step a node, rather
than one step for all, keeps the fault of one node its own: a step that cannot start, hangs or loses its node says so
for that node, and the others never wait for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import secrets
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fairlead.base.files import write_atomic
from fairlead.base.nodeset import NodeSet
from fairlead.cluster import scheduler
from fairlead.cluster.backend import Backend, last_line
from fairlead.cluster.protocol import Command, Refusal, State
from fairlead.errors import MissingTool, SchedulerError

_TOOLS = ("srun", "sbatch", "sinfo", "squeue", "scancel")
_CANCEL_LIMIT_S = 10.0


@dataclass(frozen=True, kw_only=True)
class Ask:
    """What to ask of Slurm; empty means Slurm's own default."""

    partition: str = ""
    account: str = ""
    reservation: str = ""
    minutes: int = 60
    """How long the job may hold its nodes, should nobody give them back."""
    pending_s: float = 60.0
    """How long to wait for the job to start."""
    options: tuple[str, ...] = ("--exclusive", "--mem=0")
    """More sbatch options. The default asks for whole nodes, with all their memory."""
    container: str = ""
    runtime: Literal["none", "pyxis", "apptainer"] = "none"


class SlurmBackend(Backend):
    """Steps by srun, in one's own job or in the job one is in."""

    name = "slurm"

    def __init__(
        self,
        ask: Ask = Ask(),
        *,
        folder: Path,
        note: Callable[[str], object] = lambda _: None,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        """The batch script is left in `folder`; `note` is told what is waited for."""
        self._ask, self._folder, self._note = ask, folder, note
        self._env = _clean(environ)
        self._own_job = environ.get("SLURM_JOB_ID", "")
        self._own_nodes = NodeSet(environ.get("SLURM_JOB_NODELIST", ""))
        self._job_of: dict[str, str] = {}
        self._tag = f"fairlead-{secrets.token_hex(4)}"
        """The job's name; what is cancelled is found by it."""
        self._canceller: subprocess.Popen[bytes] | None = None
        self._allocating = asyncio.Lock()

    def wrap(self, node: str, argv: Sequence[str]) -> list[str]:
        """One step of one task, beside whatever else runs on the node."""
        return self._srun(node, [], argv)

    def wrap_contained(self, node: str, argv: Sequence[str]) -> list[str]:
        """The step in a container: by srun's own option with pyxis, by a program before the command with apptainer."""
        ask = self._ask
        if ask.runtime == "pyxis":
            return self._srun(node, [f"--container-image={ask.container}"], argv)
        if ask.runtime == "apptainer":
            return self._srun(node, [], ["apptainer", "exec", ask.container, *argv])
        return self.wrap(node, argv)

    def wrap_tasks(self, nodes: NodeSet, per_node: int, command: Command, options: Sequence[str]) -> list[str] | None:
        """One step over nodes of one job; nodes of several jobs cannot share a step."""
        jobs = {self._job_of.get(node, "") for node in nodes}
        if len(jobs) != 1 or not (job := jobs.pop()):
            return None
        argv = list(command.argv)
        if command.in_container and self._ask.runtime == "pyxis":
            options = [*options, f"--container-image={self._ask.container}"]
        elif command.in_container and self._ask.runtime == "apptainer":
            argv = ["apptainer", "exec", self._ask.container, *argv]
        return tasks_step(nodes, per_node, [f"--jobid={job}", "--overlap", *options], command.env, argv)

    def wrap_control(self, argv: Sequence[str]) -> list[str] | None:
        """Slurm's commands work on this machine."""
        return list(argv)

    def _srun(self, node: str, options: Sequence[str], argv: Sequence[str]) -> list[str]:
        return [
            "srun",
            f"--jobid={self._job_of[node]}",
            f"--job-name={self._tag}",
            f"--nodelist={node}",
            "--nodes=1",
            "--ntasks=1",
            "--overlap",
            "--cpu-bind=none",
            "--mpi=none",
            "--chdir=/tmp",
            *options,
            "--",
            *argv,
        ]

    def environ(self) -> Mapping[str, str]:
        """Without what an enclosing job says about its shape: each step says its own."""
        return self._env

    async def ready(self, nodes: NodeSet) -> Mapping[str, Refusal]:
        """Find out which nodes Slurm can use, and hold those."""
        missing = [tool for tool in _TOOLS if not shutil.which(tool)]
        if missing:
            raise MissingTool(
                "cluster/no-slurm", f"Slurm is not on this machine: no {', '.join(missing)}", hint="fairlead doctor"
            )
        async with self._allocating:
            return await self._inside(nodes) if self._own_job else await self._outside(nodes)

    async def _inside(self, nodes: NodeSet) -> dict[str, Refusal]:
        refusals = {
            node: Refusal(
                State.UNREACHABLE, f"it is not part of job {self._own_job}", "name it in the job's --nodelist"
            )
            for node in nodes - self._own_nodes
        }
        members = nodes & self._own_nodes
        self._job_of |= dict.fromkeys(members, self._own_job)
        if members:
            refusals |= await scheduler.refusals(members, self._env, in_job=True)
        return refusals

    async def _outside(self, nodes: NodeSet) -> dict[str, Refusal]:
        wanted = NodeSet(n for n in nodes if n not in self._job_of)
        if not wanted:
            return {}
        refusals = await scheduler.refusals(wanted, self._env, in_job=False)
        usable = NodeSet(n for n in wanted if n not in refusals)
        if usable:
            job = await self._submit(usable)
            late = await scheduler.wait_until_running(job, self._ask.pending_s, self._env, self._note)
            if late:
                await self._cancel(job)
                return refusals | dict.fromkeys(usable, late)
            self._job_of |= dict.fromkeys(usable, job)
        return refusals

    async def _submit(self, nodes: NodeSet) -> str:
        """Write the batch script, submit it, return the job's number. Raises SchedulerError."""
        script = self._folder / f"{self._tag}-{len(set(self._job_of.values())) + 1}.sbatch"
        write_atomic(script, script_text(self._ask, nodes, self._tag, script))
        self._watch_over()
        done = await scheduler.ask(["sbatch", "--parsable", str(script)], self._env)
        job = done.out.partition(";")[0].strip()
        if done.rc != 0 or not job.isdigit():
            why = last_line(done.err).removeprefix("sbatch: error: ") or f"sbatch ended with status {done.rc}"
            raise SchedulerError("cluster/slurm-refused", why, nodes=str(nodes), hint=f"sbatch {script}")
        self._note(f"job {job} asks for {nodes} ({len(nodes)})")
        return job

    def _watch_over(self) -> None:
        """Start what cancels the job should this process be killed: a shell that waits for the end of its input."""
        if self._canceller is None:
            self._canceller = subprocess.Popen(
                [
                    "sh",
                    "-c",
                    'cat >/dev/null; scancel --me --name="$1"; sleep 2; exec scancel --me --name="$1"',
                    "sh",
                    self._tag,
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=self._env,
                start_new_session=True,
            )

    async def _cancel(self, *jobs: str) -> None:
        done = await scheduler.ask(["scancel", *(jobs or ("--me", f"--name={self._tag}"))], self._env, _CANCEL_LIMIT_S)
        if done.rc != 0:
            what = f"job {jobs[0]}" if jobs else f"the job named {self._tag}"
            self._note(f"{what} could not be cancelled: {last_line(done.err)}; type: scancel --name={self._tag}")

    def explain(self, node: str, rc: int | None, said: str) -> Refusal:
        """From srun's own words."""
        for pattern, meaning, hint in _FAULTS:
            if found := re.search(pattern, said):
                return Refusal(State.UNREACHABLE, meaning.format(*found.groups()), hint)
        why = last_line(said).removeprefix("srun: error: ")
        return self.explain_python(rc, said) or Refusal(
            State.UNREACHABLE, why or f"srun ended with status {rc} and said nothing", "scontrol show node NODE"
        )

    async def close(self) -> None:
        """Give the nodes back."""
        canceller, self._canceller = self._canceller, None
        if canceller is None:
            return
        try:
            await self._cancel()
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(canceller.pid, 9)
            canceller.wait()
            if canceller.stdin:
                canceller.stdin.close()
            self._job_of.clear()


def tasks_step(
    nodes: NodeSet, per_node: int, options: Sequence[str], env: Mapping[str, str], argv: Sequence[str]
) -> list[str]:
    """The srun of a group of tasks, numbered node by node, their lines labelled; binding CPUs is left to the site."""
    return [
        "srun",
        f"--nodelist={nodes}",
        f"--nodes={len(nodes)}",
        f"--ntasks={len(nodes) * per_node}",
        f"--ntasks-per-node={per_node}",
        "--distribution=block",
        "--kill-on-bad-exit=0",
        "--wait=0",
        "--label",
        "--mpi=none",
        "--chdir=/tmp",
        *options,
        "--",
        *(["env", *(f"{key}={value}" for key, value in env.items())] if env else []),
        *argv,
    ]


_FAULTS = (
    (r"Unable to create step for job \d+: (.*)", "Slurm cannot start a step there: {0}", "scontrol show node NODE"),
    (r"Unable to confirm allocation for job (\d+)", "job {0} has ended", "sacct -j, or scontrol show job"),
    (r"Job/step already completing or completed|Job \d+ .*has expired", "the job has ended", "scontrol show job"),
    (r"[Nn]ode failure on|Node fail", "Slurm says the node failed", "scontrol show node NODE"),
    (r"[Tt]ask launch .*failed.*: (.*)", "its slurmd could not start a task: {0}", "systemctl status slurmd on NODE"),
    (r"Unable to contact slurm controller", "the Slurm controller does not answer", "scontrol ping"),
    (r"[Zz]ero Bytes were transmitted|Communication connection failure|Connection refused",
     "its slurmd does not answer", "systemctl status slurmd on NODE"),
)  # fmt: skip
"""What srun prints, what it means, what to type next."""


def script_text(ask: Ask, nodes: NodeSet, tag: str, path: Path) -> str:
    """A batch script that holds nodes, as readable as one written by hand."""
    settings = [
        f"--job-name={tag}",
        f"--nodelist={nodes}",
        f"--nodes={len(nodes)}",
        f"--time={ask.minutes}",
        *(f"--{key}={value}" for key in ("partition", "account", "reservation") if (value := getattr(ask, key))),
        *ask.options,
        "--no-kill",
        "--no-requeue",
        "--output=/dev/null",
        "--chdir=/tmp",
    ]
    return "\n".join(
        [
            "#!/bin/sh",
            f"# Holds {nodes} ({len(nodes)}) while fairlead runs job steps there; it then cancels this job.",
            f"# By hand:  sbatch --parsable {path}",
            "#           srun --jobid=JOB --overlap --nodes=1 --ntasks=1 --nodelist=NODE COMMAND",
            *(f"#SBATCH {setting}" for setting in settings),
            "",
            f"exec sleep {ask.minutes * 60}",
            "",
        ]
    )


def _clean(environ: Mapping[str, str]) -> dict[str, str]:
    """An environment without the shape of an enclosing job, which srun and sbatch would take for options."""
    shape = re.compile(r"(SLURM|SBATCH|SRUN|SLURMD|PMI|PMIX)_")
    return {key: value for key, value in environ.items() if key == "SLURM_CONF" or not shape.match(key)}

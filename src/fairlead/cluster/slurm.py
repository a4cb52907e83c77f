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
import shlex
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from fairlead.base.files import write_atomic
from fairlead.base.nodeset import NodeSet
from fairlead.base.table import printable
from fairlead.cluster import scheduler
from fairlead.cluster.backend import Backend, last_line
from fairlead.cluster.child import let_go
from fairlead.cluster.protocol import Command, Refusal, State
from fairlead.cluster.slurmforms import wrong_settings
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
    step_options: tuple[str, ...] = ()
    """More srun options for every step."""
    container: str = ""
    containers: Mapping[str, str] = field(default_factory=dict)
    """Node -> its own pool's image, where that differs."""
    mounts: tuple[str, ...] = ()
    """`SOURCE:TARGET` of the container, as both runtimes write it."""
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
        self._left_out = left_out(environ)
        self._gpus: dict[str, int] = {}
        """GPUs that the job holds on each node."""
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
        options, words = self._contained(self.container_of(node), argv)
        return self._srun(node, options, words)

    def container_of(self, node: str) -> str:
        """Its pool's image, else the one of all."""
        ask = self._ask
        return "" if ask.runtime == "none" else ask.containers.get(node, "") or ask.container

    def _contained(self, image: str, argv: Sequence[str]) -> tuple[list[str], list[str]]:
        """Srun's options and the command, in an image."""
        mounts = self._ask.mounts
        if image and self._ask.runtime == "pyxis":
            return [f"--container-image={image}", *([f"--container-mounts={','.join(mounts)}"] if mounts else [])], [
                *argv
            ]
        if image and self._ask.runtime == "apptainer":
            binds = [word for mount in mounts for word in ("--bind", mount)]
            return [], ["apptainer", "exec", *binds, image, *argv]
        return [], [*argv]

    def wrap_tasks(self, nodes: NodeSet, per_node: int, command: Command, options: Sequence[str]) -> list[str] | None:
        """One step over nodes of one job; nodes of several jobs cannot share a step."""
        jobs = {self._job_of.get(node, "") for node in nodes}
        if len(jobs) != 1 or not (job := jobs.pop()):
            return None
        image = self.container_of(nodes[0]) if command.in_container else ""
        contained, argv = self._contained(image, command.argv)
        # what the job does not hold, a step of it cannot have: what it does hold counts, whoever asks for what
        own = [option for option in options if not option.startswith(_GPU_OPTIONS)]
        gpus = gres(min(self._gpus.get(node, 0) for node in nodes))
        step = [
            f"--jobid={job}",
            f"--job-name={new_step(self._tag)}",
            "--overlap",
            *gpus,
            *contained,
            *self._step_options(),
            *own,
        ]
        return tasks_step(nodes, per_node, step, command.env, argv)

    def _step_options(self) -> list[str]:
        """Of the job's options those that a step must be told again, and those that are for steps alone."""
        again = [option for option in self._ask.options if option.partition("=")[0] in STEP_TOO]
        return [*again, *self._ask.step_options]

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
            *gres(self._gpus.get(node, 0)),
            *options,
            *self._step_options(),
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
        if self._left_out:
            self._note(f"not used, as [slurm] says what to ask for: {', '.join(self._left_out)}")
            self._left_out = []
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
            await self._ask_gpus(self._own_job)
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
            await self._ask_gpus(job)
        return refusals

    async def _ask_gpus(self, job: str) -> None:
        """A step gets the GPUs it asks for and, of a job that was given them unasked, no others."""
        done = await scheduler.ask(["scontrol", "show", "job", "--details", "--oneliner", job], self._env)
        if done.rc == 0:
            self._gpus |= held_gpus(of_job(done.out, job))
        else:
            self._note(f"Slurm does not say which GPUs job {job} holds, so steps ask for none: {last_line(done.err)}")

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
        why = last_line(without_noise(said)).removeprefix("srun: error: ")
        return self.explain_python(rc, said) or Refusal(
            State.UNREACHABLE, why or f"srun ended with status {rc} and said nothing", "scontrol show node NODE"
        )

    async def close(self) -> None:
        """Give the nodes back."""
        canceller, self._canceller = self._canceller, None
        if canceller is None:
            return
        is_cancelled = False
        try:
            await self._cancel()
            is_cancelled = True
        finally:
            assert canceller.stdin is not None
            if is_cancelled:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(canceller.pid, 9)
                canceller.wait()
            canceller.stdin.close()  # after an interrupt nobody waits: it cancels the job by itself
            let_go(canceller)
            self._job_of.clear()


def new_step(tag: str) -> str:
    """A name that no other step has: by it Slurm is asked which of its tasks runs where."""
    return f"{tag}-{secrets.token_hex(4)}"


def tasks_step(
    nodes: NodeSet, per_node: int, options: Sequence[str], env: Mapping[str, str], argv: Sequence[str]
) -> list[str]:
    """The srun of a group of tasks, their lines labelled. `options` name the step: see new_step.

    A node that fails ends its own tasks and not the step: else all others were killed, and looked guilty. No binding
    to CPUs of srun's own choice: what ranks then see would be taken for what the user's job is given. More ranks than
    CPUs of the job are no reason to refuse: a job of one task a node may have asked for no more.
    """
    return [
        "srun",
        f"--nodelist={nodes}",
        f"--nodes={len(nodes)}",
        f"--ntasks={len(nodes) * per_node}",
        f"--ntasks-per-node={per_node}",
        "--overcommit",
        "--distribution=block",
        "--kill-on-bad-exit=0",
        "--no-kill",
        "--wait=0",
        "--label",
        "--cpu-bind=none",
        "--mpi=none",
        "--chdir=/tmp",
        *options,
        "--",
        *(["env", *(f"{key}={value}" for key, value in env.items())] if env else []),
        *argv,
    ]


STEP_TOO = frozenset(
    {"--container-env", "--container-mount-home", "--container-mounts", "--container-name", "--container-remap-root",
     "--container-workdir", "--container-writable", "--export", "--network", "--no-container-mount-home",
     "--no-container-remap-root", "--propagate"}
)  # fmt: skip
"""sbatch options that only have an effect on a step where srun is given them again: srun(1), and pyxis' README."""
_GPU_OPTIONS = ("--gres=", "--gpus=", "--gpus-per-node=")


def gres(num_gpus: int) -> list[str]:
    """So that a step sees GPUs where Slurm constrains devices (cgroup.conf(5), ConstrainDevices).

    A step inherits the job's own request for GRES, but not what a job got by --exclusive alone (measured, Slurm 22.05).
    """
    return [f"--gres=gpu:{num_gpus}"] if num_gpus else []


def of_job(shown: str, job: str) -> str:
    r"""The line about one job: of an array's first number scontrol shows all tasks, which may hold the same nodes.

    >>> of_job("JobId=8 ArrayJobId=7 Nodes=n1\nJobId=7 ArrayJobId=7 Nodes=n2\n", "7")
    'JobId=7 ArrayJobId=7 Nodes=n2'
    """
    return "\n".join(line for line in shown.splitlines() if line.startswith(f"JobId={job} ")) or shown


def held_gpus(shown: str) -> dict[str, int]:
    """Node -> GPUs, from `scontrol show job --details --oneliner`.

    >>> held_gpus("JobId=7 JOB_GRES=gpu:a100:16 Nodes=n[1-2] CPU_IDs=0-95 Mem=0 GRES=gpu:a100:8(IDX:0-7) Requeue=0")
    {'n1': 8, 'n2': 8}
    >>> held_gpus("Nodes=n1 CPU_IDs=0 Mem=0 GRES= Nodes=n2 CPU_IDs=0 Mem=0 GRES=gpu:a:1(IDX:0),gpu:b:2(IDX:1-2)")
    {'n2': 3}
    """
    held: dict[str, int] = {}
    for nodes, listed in re.findall(r"\bNodes=(\S+) CPU_IDs=\S* Mem=\S* GRES=(\S*)", shown):
        num = sum(int(count) for count in re.findall(r"\bgpu(?::[^:(,]+)?:(\d{1,9})\b", listed))
        if num:
            held |= dict.fromkeys(NodeSet(nodes), num)
    return held


def without_noise(said: str) -> str:
    """What srun said, without what it says of every step where Slurm has no plugin that binds to CPUs."""
    return "\n".join(line for line in said.splitlines() if not line.endswith(NO_BINDING))


NO_BINDING = "cluster configuration lacks support for cpu binding"

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
    """A batch script that holds nodes, as readable as one written by hand. Raises SchedulerError."""
    words = {key: getattr(ask, key) for key in ("partition", "account", "reservation")}
    for wrong in wrong_settings(words, {"options": ask.options}):
        # the cluster file was checked; who makes an Ask of their own is told the same
        raise SchedulerError("cluster/slurm-setting", wrong.message, nodes=str(nodes), hint=wrong.hint)
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
            f"# By hand:  sbatch --parsable {printable(shlex.quote(str(path)))}",
            "#           srun --jobid=JOB --overlap --nodes=1 --ntasks=1 --nodelist=NODE COMMAND",
            *(f"#SBATCH {setting}" for setting in settings),
            "",
            f"exec sleep {ask.minutes * 60}",
            "",
        ]
    )


def _clean(environ: Mapping[str, str]) -> dict[str, str]:
    """An environment without the shape of an enclosing job, which srun and sbatch would take for options."""
    shape = re.compile(r"(SLURM|SBATCH|SRUN|SALLOC|SLURMD|PMI|PMIX)_")
    return {key: value for key, value in environ.items() if key == "SLURM_CONF" or not shape.match(key)}


def left_out(environ: Mapping[str, str]) -> list[str]:
    """Settings of the user's for sbatch and srun that are not passed on; those a job sets by itself are no settings.

    >>> left_out({"SBATCH_ACCOUNT": "a", "SLURM_CONF": "/c", "SLURM_PARTITION": "p"})
    ['SBATCH_ACCOUNT', 'SLURM_PARTITION']
    >>> left_out({"SBATCH_ACCOUNT": "a", "SLURM_JOB_ID": "7", "SLURM_NTASKS": "2"})
    ['SBATCH_ACCOUNT']
    """
    ours = ("SBATCH_",) if "SLURM_JOB_ID" in environ else ("SBATCH_", "SLURM_", "SRUN_")
    return sorted(key for key in environ if key.startswith(ours) and key != "SLURM_CONF")

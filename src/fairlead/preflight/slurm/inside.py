"""Being somewhere rather than asking from outside: in a Slurm job, or on a node. Pure, but for the cluster file."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from fairlead.base.nodeset import NodeSet
from fairlead.base.units import whole
from fairlead.records.finding import Evidence, Finding, Subject
from fairlead.records.verdict import Verdict
from fairlead.spec.loader import read
from fairlead.spec.model import Access, Cluster, Expect, Pool, Spec


def spec_of_job(environ: Mapping[str, str]) -> tuple[str, Spec]:
    """A cluster file for the job one is in, from its environment alone: its nodes, and the GPUs each was given."""
    nodes = NodeSet(environ.get("SLURM_JOB_NODELIST", ""))
    gpus = environ.get("SLURM_GPUS_ON_NODE", "")
    given = f"gpus = {gpus}\n" if whole(gpus) is not None else ""
    text = (
        f'schema = 1\n[cluster]\nname = "job-{environ.get("SLURM_JOB_ID", "0")}"\n'
        f'[[pool]]\nname = "job"\nsize = "other"\nnodes = "{nodes}"\n{given}[access]\nvia = "slurm"\n'
    )
    pool = Pool(name="job", size="other", nodes=nodes, gpus=whole(gpus))
    name = f"job-{environ.get('SLURM_JOB_ID', '0')}"
    return text, Spec(schema=1, cluster=Cluster(name=name), pools=(pool,), access=Access(via="slurm"))


def here_spec(environ: Mapping[str, str], path: Path | None) -> tuple[str, Spec]:
    """(this node's name, the cluster file): without a file, hardware of which only its own words are known."""
    name = environ.get("SLURMD_NODENAME") or platform.node().partition(".")[0]
    named = path or (Path(environ["FAIRLEAD_SPEC"]) if environ.get("FAIRLEAD_SPEC") else None)
    if named is not None:
        return name, read(named).spec
    pool = Pool(name="here", size="other", nodes=NodeSet([name]))
    return name, Spec(schema=1, pools=(pool,), access=Access(via="local"))


def within_job(spec: Spec, environ: Mapping[str, str], now_s: float) -> Spec:
    """The cluster file, with the job's own time for how far ahead an event of the platform counts.

    Slurm says when the job ends from 23.02 on, in a prolog from 24.05 on; else the cluster file's time holds.
    """
    end = whole(environ.get("SLURM_JOB_END_TIME"))
    if end is None or end <= now_s:
        return spec
    minutes = max(1.0, round((end - now_s) / 60, 1))
    why = f"job {environ.get('SLURM_JOB_ID', '?')} ends then: SLURM_JOB_END_TIME"
    own = Expect(fact="event_window_min", value=minutes, why=why)
    return msgspec.structs.replace(spec, expects=(*spec.expects, own))


def judge_job(environ: Mapping[str, str], spec: Spec) -> Iterator[Finding]:
    """Whether the job one is in has a task for every GPU it holds: with fewer, GPUs stay idle and nobody says so.

    One task a node is well, too: it is a launcher's, such as torchrun, which starts the ranks.
    """
    yield from _other_components(environ)
    nodes = NodeSet(environ.get("SLURM_JOB_NODELIST", ""))
    tasks = environ.get("SLURM_NTASKS") or environ.get("SLURM_NPROCS", "")
    held = environ.get("SLURM_GPUS_ON_NODE", "")
    per_node = {int(held)} if held.isdigit() else {p.gpus for p in spec.pools if p.nodes & nodes and p.gpus}
    if not tasks.isdigit() or len(per_node) != 1:
        return
    gpus = per_node.pop()
    want = len(nodes) * gpus
    if int(tasks) not in (want, len(nodes)):
        yield Finding(
            code="preflight/rank-count",
            verdict=Verdict.FAIL,
            subject=Subject(kind="job"),
            message=f"the job has {tasks} tasks; {len(nodes)} nodes with {gpus} GPUs each need {want}, or one a node "
            "for a launcher that starts the ranks",
            evidence=(Evidence("SLURM_NTASKS", tasks), Evidence("SLURM_JOB_NODELIST", str(nodes))),
            remedy=f"#SBATCH --nodes={len(nodes)} --ntasks-per-node={gpus}",
            data={"tasks": int(tasks), "wanted": want},
        )


def _other_components(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Nodes of a heterogeneous job beyond the component one is in: its steps reach none of them.

    Slurm names them by SLURM_JOB_NODELIST_HET_GROUP_n (slurm.schedmd.com/heterogeneous_jobs.html).
    """
    num = environ.get("SLURM_HET_SIZE", "")
    here = NodeSet(environ.get("SLURM_JOB_NODELIST", ""))
    groups = [environ.get(f"SLURM_JOB_NODELIST_HET_GROUP_{i}", "") for i in range(int(num) if num.isdecimal() else 0)]
    others = NodeSet(name for group in groups for name in NodeSet(group)) - here
    if others:
        yield Finding(
            code="preflight/het-job",
            verdict=Verdict.UNKNOWN,
            subject=Subject(kind="job", nodes=tuple(others)),
            message=f"the job has {num} components, and only the nodes of this one ({here}) are tested: of {others} "
            "nothing is known",
            evidence=tuple(Evidence(f"SLURM_JOB_NODELIST_HET_GROUP_{i}", group) for i, group in enumerate(groups))[:5],
            remedy=f"before the job: fairlead preflight -w '{here},{others}'; or a job of its own for each component",
            data={"components": int(num), "nodes": str(others)},
        )

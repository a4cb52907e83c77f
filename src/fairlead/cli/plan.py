"""`fairlead plan`: which VM size and network, the files that follow, and the traps in manifests of others."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Group, Parameter

from fairlead.cli.common import Common, SpecFile
from fairlead.cli.output import Answer, session
from fairlead.errors import UsageError

if TYPE_CHECKING:
    from fairlead.plan.advice import Advice
    from fairlead.plan.diff import Change
    from fairlead.spec.loader import Loaded
    from fairlead.spec.model import Spec

_ASK = Group("Without a cluster file", sort_key=20)
_FILES = Group("Files", sort_key=30)
_LINT = Group("Manifests of others", sort_key=40)
_Flag = Parameter(negative=())

DEFAULT_FOLDER = Path("plan")


def plan(
    *,
    write: Annotated[Path | None, Parameter(group=_FILES)] = None,
    against: Annotated[Path, Parameter(group=_FILES)] = DEFAULT_FOLDER,
    only: Annotated[
        tuple[Literal["slurm", "kubernetes", "node", "azure", "cyclecloud"], ...],
        Parameter(group=_FILES, negative=(), show_default=False),
    ] = (),
    force: Annotated[bool, Parameter(group=_FILES, negative=())] = False,
    brief: Annotated[bool, Parameter(group=_FILES, negative=())] = False,
    groups: Annotated[Path | None, Parameter(group=_FILES)] = None,
    skus: Path | None = None,
    job: Annotated[
        Literal["training", "finetuning", "inference", "hpc"] | None, Parameter(group=_ASK, show_default=False)
    ] = None,
    parameters: Annotated[float | None, Parameter(group=_ASK)] = None,
    gpus: Annotated[int | None, Parameter(group=_ASK)] = None,
    nodes: Annotated[int | None, Parameter(group=_ASK)] = None,
    region: Annotated[str | None, Parameter(group=_ASK)] = None,
    dataset_tib: Annotated[float | None, Parameter(group=_ASK)] = None,
    budget: Annotated[float | None, Parameter(group=_ASK)] = None,
    via: Annotated[Literal["slurm", "kubernetes"], Parameter(group=_ASK)] = "slurm",
    lint: Annotated[
        tuple[Path, ...], Parameter(group=_LINT, negative=(), consume_multiple=True, show_default=False)
    ] = (),
    size: Annotated[str, Parameter(group=_LINT)] = "",
    spec: SpecFile = None,
    common: Common = Common(),
) -> Answer:
    """Choose a VM size and a network, with reasons; show the files that follow as a diff; find traps in manifests.

    Nothing is contacted, and nothing is written without `--write`. Exit codes: 0 it fits, or no trap; 3 nothing fits, a
    trap, or a file that somebody changed by hand was kept; 4 something could not be judged.

    Parameters
    ----------
    write
        Write the files below this folder. A file that somebody changed by hand is kept and named.
    against
        Without `--write`: the folder to compare with.
    only
        Only these files; else Slurm or Kubernetes as the cluster file is reached, with what belongs to it.
    force
        With `--write`: write over files that were changed by hand, too.
    brief
        List the files, without their differences.
    groups
        A file that says which node sits below which switch or in which NVLink rack: `NODE GROUP`, one line a node.
    skus
        What your region sells: the JSON of `az vm list-skus --location REGION --resource-type virtualMachines --all`.
    job
        What runs on the cluster.
    parameters
        Parameters of the model, in billions.
    gpus
        GPUs of the whole job; left out, the fewest that hold the model.
    nodes
        Nodes, for jobs without GPUs.
    region
        The Azure region.
    dataset_tib
        Size of the data set, in TiB.
    budget
        The most that all VMs may cost in an hour; `prices` in [plan] says what one costs.
    via
        What schedules jobs.
    lint
        Read these manifests, Helm values and scripts, files or folders of them, and find known traps.
    size
        With `--lint`: the VM size of the nodes, where the files do not say it.
    spec
        The cluster file; else FAIRLEAD_SPEC, or ./cluster.toml; without one, the questions below.
    """
    if lint:
        return _lint(lint, size, spec)
    asked = {
        "plan.job": job,
        "plan.parameters_b": parameters,
        "plan.gpus": gpus,
        "plan.region": region,
        "plan.dataset_tib": dataset_tib,
        "plan.budget_per_hour": budget,
    }
    said = {key: value for key, value in asked.items() if value is not None}
    from fairlead.plan.advice import advise
    from fairlead.plan.choice.skus import read_offers

    loaded = _loaded(spec, said, common)
    offers = read_offers(skus, _region(loaded, said)) if skus else None
    advice = advise(loaded.spec if loaded else None, said, nodes=nodes, via=via, offers=offers)
    if advice.spec is None:
        return _answer(advice, [], (), DEFAULT_FOLDER, brief=brief, wrote=False)
    from fairlead.base.trust import why_not_ours
    from fairlead.plan.diff import apply, compare
    from fairlead.plan.everything import plan_files, targets_for
    from fairlead.plan.wanted import wanted_of

    wanted = wanted_of(advice.spec)
    if not wanted.pools:
        why = "no pool has a VM size that a plan is made for: `lab` and `other` are none"
        raise UsageError("plan/no-pool", why, hint="fairlead init --list")
    places = _groups(groups, advice.spec)
    made = plan_files(
        wanted,
        only or targets_for(advice.spec.access.via),
        groups=places,
        storage=advice.storage,
        cluster_file=advice.cluster_file,
        spec=advice.spec,
    )
    changes = apply(write, made.files, force=force) if write else compare(against, made.files)
    notes = tuple(made.notes)
    if write and (why := why_not_ours(write)):
        notes += (f"others may change these files before they are installed: {why}",)
    return _answer(advice, changes, notes, write or against, brief=brief, wrote=write is not None, force=force)


def _loaded(spec: Path | None, said: dict[str, Any], common: Common) -> Loaded | None:
    """The cluster file with the flags laid over; None where there is none and the questions are answered instead."""
    import os

    from fairlead.spec.loader import DEFAULT_FILE, read

    if spec is None and not os.environ.get("FAIRLEAD_SPEC") and not Path(DEFAULT_FILE).exists():
        if not said:
            raise UsageError(
                "plan/nothing-asked",
                "there is no cluster file, and no question is answered",
                hint="fairlead plan --parameters 70 --gpus 128, or fairlead init",
            )
        return None
    return read(spec, flags={"runs.dir": common.runs, **said})


def _region(loaded: Loaded | None, said: dict[str, Any]) -> str:
    from fairlead.plan.table import PlanTable

    return loaded.spec.table(PlanTable).region if loaded else str(said.get("plan.region", ""))


def _groups(path: Path | None, spec: Spec) -> Any:
    if path is None:
        return None
    from fairlead.plan.slurm.topology import parse_groups
    from fairlead.spec.text import read_text

    return parse_groups(read_text(path, what="file of groups", hint="fairlead plan --help"), spec.nodes, file=str(path))


def _answer(
    advice: Advice,
    changes: list[Change],
    notes: tuple[str, ...],
    folder: Path,
    *,
    brief: bool,
    wrote: bool,
    force: bool = False,
) -> Answer:
    from fairlead.plan.faces import text_of
    from fairlead.plan.findings import kept_findings
    from fairlead.records.finding import verdict_of
    from fairlead.report.text import paint_for

    findings = [*advice.findings, *kept_findings(changes, folder, wrote=wrote, force=force)]
    paint = paint_for(session().stdout)
    hints = [] if wrote or not changes else [f"fairlead plan --write {folder}"]
    return Answer(
        schema="fairlead.plan/1",
        verdict=verdict_of(findings),
        text=lambda: text_of(advice, changes, notes, findings, folder=folder, paint=paint, brief=brief, wrote=wrote),
        body={
            "choice": advice.choice,
            "network": advice.network,
            "storage": advice.storage,
            "findings": findings,
            "notes": notes,
            "folder": str(folder),
            "written": wrote,
            "files": changes,
        },
        hints=hints,
    )


def _lint(paths: tuple[Path, ...], size: str, spec: Path | None) -> Answer:
    from fairlead.plan.lint.judge import lint_paths
    from fairlead.records.finding import verdict_of, worst_first
    from fairlead.report.text import counts_line, findings_text, paint_for
    from fairlead.spec.loader import load

    sizes = [size] if size else [pool.size for pool in load(spec).pools] if spec else []
    result = lint_paths(paths, sizes=sizes)
    findings = worst_first(result.findings)
    paint = paint_for(session().stdout)
    first = next((f.code for f in findings if f.remedy), "")
    read = f"{len(result.files)} files, {result.num_objects} objects, {result.num_commands} az commands"
    return Answer(
        schema="fairlead.plan-lint/1",
        verdict=verdict_of(findings),
        text=lambda: "\n\n".join(filter(None, (findings_text(findings, paint), f"{read}; {counts_line(findings)}"))),
        body={"files": result.files, "objects": result.num_objects, "findings": findings},
        hints=[f"fairlead explain {first}"] if first else [],
    )

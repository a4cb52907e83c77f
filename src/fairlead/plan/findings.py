"""A choice as findings: what fits, what does not, what was kept. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from fairlead.plan.choice.fabric import FabricChoice
from fairlead.plan.choice.need import Need
from fairlead.plan.choice.sizes import Choice
from fairlead.plan.choice.storage import StorageChoice
from fairlead.plan.diff import Change
from fairlead.records.finding import Evidence, Finding, Subject
from fairlead.records.verdict import Verdict
from fairlead.spec.model import Spec
from fairlead.spec.vmsize import VmSize

_CLUSTER = Subject(kind="cluster")


def choice_finding(need: Need, choice: Choice, declared: VmSize | None, nodes: int) -> Finding:
    """The size that was chosen, or whether the one in the cluster file fits."""
    if declared is None and choice.chosen is not None:
        fit = choice.chosen
        text = f"{fit.nodes} x {fit.size.name}"
        return Finding(
            code="plan/choice", verdict=Verdict.PASS, subject=_CLUSTER, message="; ".join((text, *fit.reasons))
        )
    if declared is None:
        text = "no VM size fits; the nearest: " + "; ".join(_nearest(choice))
        remedy = "Ask for less, or allow more: GPUs, budget, region, maker."
        return Finding(code="plan/choice", verdict=Verdict.FAIL, subject=_CLUSTER, message=text, remedy=remedy)
    fits = next((f for f in choice.fits if f.size.name == declared.name), None)
    against = next((r for r in choice.rejected if r.size.name == declared.name), None)
    if against is not None:
        best = f"; {choice.chosen.nodes} x {choice.chosen.size.name} would" if choice.chosen else ""
        text = f"{declared.name} does not fit: {'; '.join(against.reasons)}{best}"
        remedy = "Change the pool's size, or what [plan] asks for."
        return Finding(code="plan/choice", verdict=Verdict.FAIL, subject=_CLUSTER, message=text, remedy=remedy)
    if fits is None:
        text = f"no facts about {declared.name}: nothing says whether it fits"
        return Finding(code="plan/choice", verdict=Verdict.UNKNOWN, subject=_CLUSTER, message=text)
    if fits.nodes > nodes:
        text = f"{nodes} x {declared.name} are too few: the job takes {fits.nodes}"
        remedy = "Add nodes to the pool, or ask for less."
        return Finding(code="plan/choice", verdict=Verdict.FAIL, subject=_CLUSTER, message=text, remedy=remedy)
    text = "; ".join((f"{nodes} x {declared.name} fit", *fits.reasons))
    return Finding(code="plan/choice", verdict=Verdict.PASS, subject=_CLUSTER, message=text)


def network_finding(network: FabricChoice, spec: Spec | None, size: VmSize) -> Finding:
    """The network that was chosen; a warning where the cluster file says another one."""
    text = "; ".join(filter(None, (network.kind, *network.reasons, network.exchange)))
    said = spec.fabric.rdma if spec is not None else ""
    if said and said != "none" and not size.rdma:
        why = f"the cluster file says rdma = `{said}`, and {size.name} has none that a source names"
        remedy = 'Write rdma = "none", or choose a size with RDMA.'
        return Finding(code="plan/network", verdict=Verdict.FAIL, subject=_CLUSTER, message=why, remedy=remedy)
    if said == "none" and network.kind == "rdma":
        why = f'the cluster file says rdma = "none", so jobs would leave {size.hca_ports} ports of each node unused'
        remedy = 'Write rdma = "ib" and link = "infiniband" in [fabric].'
        return Finding(code="plan/network", verdict=Verdict.WARN, subject=_CLUSTER, message=why, remedy=remedy)
    return Finding(code="plan/network", verdict=Verdict.PASS, subject=_CLUSTER, message=text)


def storage_finding(found: StorageChoice) -> Finding:
    """The tier that is enough, or that none is."""
    chosen, asked = found.chosen, "; ".join(found.asked)
    if chosen is None:
        why = "; ".join(f"{t.tier.name} {t.why_not}" for t in found.tiers)
        text = f"no tier is enough for {asked}: {why}"
        remedy = (
            "Let checkpoints take longer (checkpoint_s), write them to local disks first, or ask for a larger maximum."
        )
        return Finding(code="plan/storage", verdict=Verdict.WARN, subject=_CLUSTER, message=text, remedy=remedy)
    size = f"{chosen.tier.name} of {chosen.tib:g} TiB: {chosen.mbs:,.0f} MB/s"
    text = f"{size}, for {asked}" + (f"; {found.local}" if found.local else "")
    evidence = (Evidence(str(chosen.tier.source), f"{chosen.tier.mbs_per_tib:g} MB/s per TiB"),)
    return Finding(code="plan/storage", verdict=Verdict.PASS, subject=_CLUSTER, message=text, evidence=evidence)


def kept_findings(changes: Iterable[Change], folder: Path, *, wrote: bool, force: bool) -> list[Finding]:
    """Each file that somebody changed by hand: kept, or written over because that was asked for."""
    found = []
    for change in changes:
        if change.state != "by hand":
            continue
        where = str(folder / change.path)
        done = "was written over" if force else "was kept" if wrote else "would be kept"
        verdict = Verdict.WARN if force or not wrote else Verdict.FAIL
        remedy = "" if force else f"Compare and merge, or fairlead plan --write {folder} --force."
        subject = Subject(kind="cluster", name=where)
        text = f"{where} {done}: it was {change.why}"
        found.append(
            Finding(code="plan/changed-by-hand", verdict=verdict, subject=subject, message=text, remedy=remedy)
        )
    return found


def _nearest(choice: Choice) -> list[str]:
    """Sizes with the fewest reasons against them."""
    few = sorted(choice.rejected, key=lambda r: (len(r.reasons), -(r.size.gpus or 0), r.size.name))
    return [f"{r.size.name} ({'; '.join(r.reasons)})" for r in few if "fewer cores" not in r.reasons[0]][:3]

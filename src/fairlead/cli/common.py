"""The options every verb shares, under the same letters everywhere."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Group, Parameter

from fairlead.base.nodeset import NodeSet
from fairlead.errors import UsageError

if TYPE_CHECKING:
    from fairlead.spec.model import Spec

_OUTPUT = Group("Output", sort_key=90)


@Parameter(name="*", group=_OUTPUT)
@dataclass(frozen=True, kw_only=True)
class Common:
    """How to answer."""

    json: Annotated[bool, Parameter(negative=())] = False
    """Print exactly one JSON document on stdout, also on failure."""

    exit: Literal["fairlead", "nagios"] = "fairlead"
    """Exit codes: fairlead's own, or 0/1/2/3 for health-check programs."""

    warn_as_fail: Annotated[bool, Parameter(negative=())] = False
    """Let a warning close the gate."""

    quiet: Annotated[bool, Parameter(name=("--quiet", "-q"), negative=())] = False
    """No progress and no hints on stderr."""

    verbose: Annotated[bool, Parameter(name=("--verbose", "-v"), negative=())] = False
    """Log what is done on stderr."""

    runs: Path | None = None
    """Where run folders go; else FAIRLEAD_RUNS, the cluster file, ./runs, or the user's state directory."""


SpecFile = Annotated[
    Path | None, Parameter(name=("--spec", "-f"), help="The cluster file; else FAIRLEAD_SPEC, or ./cluster.toml.")
]

Nodes = Annotated[
    str | None,
    Parameter(name=("--nodes", "-w"), help="The nodes, such as `h200-[000-015]`; else every node of the cluster file."),
]
Exclude = Annotated[str, Parameter(name=("--exclude", "-x"), help="Nodes to leave out.")]


def chosen(nodes: str | None, exclude: str, known: NodeSet) -> NodeSet:
    """The nodes that `-w` and `-x` leave of those the cluster has. Raises UsageError where that is none.

    `-w ""` is an empty set, not all nodes: in a script it is a variable that was not set.
    """
    from fairlead.cli.output import session
    from fairlead.cluster import check_nodes

    named = known if nodes is None else check_nodes(nodes, known)
    out = NodeSet(exclude)
    if out - known:
        session().note(f"-x leaves out {out - known}, which the cluster does not have")
    return check_nodes(named - out, None)


def spec_of_size(name: str, nodes: NodeSet | None = None) -> Spec:
    """A cluster of one VM size, where no cluster file says more; `other` for no name. Raises UsageError."""
    from fairlead.base.suggest import did_you_mean
    from fairlead.spec import size as vm_size
    from fairlead.spec import sizes
    from fairlead.spec.model import Access, Fabric, Pool, Spec

    known = vm_size(name or "other")
    if known is None:
        raise UsageError(
            "cli/no-size", f"no VM size `{name}`; {did_you_mean(name, sizes())}", hint="fairlead init --list"
        )
    fabric = Fabric(link="ethernet", rdma="none")
    if known.hca_ports:
        fabric = Fabric(link="infiniband", rdma="ib") if known.link_layer == "infiniband" else Fabric(rdma="roce")
    pool = Pool(name="all", size=known.name, nodes=nodes if nodes is not None else NodeSet("node"))
    return Spec(schema=1, pools=(pool,), fabric=fabric, access=Access(via="local"))

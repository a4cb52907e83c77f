"""The reference page of the checks, as Markdown made from the catalogue and its data.

`make docs` writes what `pages` returns into docs/reference; a test holds it fresh.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fairlead.checks.audits import AUDITS
from fairlead.checks.catalog import CATALOG, Check
from fairlead.checks.expect import DEFAULTS
from fairlead.checks.messages import patterns, xids
from fairlead.checks.skews import AUDIT_SKEWS, SKEWS
from fairlead.records.codes import explanations

_MADE = "<!-- made by `make docs`; do not edit -->"

_HEAD = """\
What `fairlead probe` and `fairlead preflight` judge of nodes, and `fairlead rejudge` of facts read earlier.
`fairlead explain CODE` prints cause, evidence and remedy of each.

A check says pass, warn, fail, unknown (could not be read: never a pass, never a fail) or skip (does not apply, with the
reason). Its verdict rests on what was read and nothing else. *Needs* names the numbers of the [VM size](vm-sizes.md)
it compares with; where no source has the number, the check is skipped and the nodes of a pool are compared with each
other. A site changes a number with `[[expect]]`, lives with a finding for a while with `[[waiver]]`, and switches a
check off with a waiver on `all` nodes, all in the [cluster file](cluster-file.md).

The ids are those of the check list fairlead was made from: H host, U GPU, I InfiniBand and RDMA, S launch and
settings, F fabric membership, A accelerated networking."""

_PORTS = """\
Which RDMA ports count, in this order: the devices named by `[[expect]] fact = "hcas"`; those NCCL_IB_HCA lets through
(environment, then /etc/nccl.conf); every port of the declared link layer, without the accelerated Ethernet port and
without ports that are switched off, as long as enough others remain, and without ports of another rate (storage, front
end) where exactly enough have a right one; where they do not remain, all of them, so that
the one that is off is named. A device without a network interface counts like any other."""

_AUDITS = """\
What a guest can know of the network it really has. A node with one of these still computes, so the gate before a job
does not ask them; `fairlead audit` asks them beside those above. The [check list](check-list.md) has all ids."""

_FLEET = """\
Compared within a pool. Nodes are folded by value; the odd ones are named against the majority, and where no value has
one, every side is named in a warning. The last two are compared by `fairlead audit` alone."""


def pages() -> dict[str, str]:
    """File name -> Markdown."""
    return {"checks.md": page()}


def page() -> str:
    """docs/reference/checks.md."""
    head = ("code", "id", "means", "at worst", "asked about", "applies to", "needs", "reads")
    fleet = ((*_said(s.code)[:2], s.what, s.severity, s.when, s.without) for s in (*SKEWS, *AUDIT_SKEWS))
    others = map(_said, ("gpu/shared", "host/clock-skew"))
    limits = ((f"`{name}`", f"{d.value:g} {d.unit}", d.what, d.source) for name, d in DEFAULTS.items())
    lines = (
        (f"`{p.code}`", p.means, p.verdict, f"{p.within_h:g} h" if p.within_h else "since boot", f"`{p.match.pattern}`")
        for p in patterns()
    )
    numbers = ((n, x.means, "not counted" if x.verdict == "pass" else x.verdict) for n, x in xids().items())
    parts = [
        "# Checks",
        _MADE,
        _HEAD,
        "## One node",
        _table(head, map(_line, CATALOG)),
        _PORTS,
        "## One node, by `fairlead audit`",
        _AUDITS,
        _table(head, map(_line, AUDITS)),
        "## Nodes side by side",
        _FLEET,
        _table(("code", "id", "must be equal", "the odd ones", "applies to", "only without a number for"), fleet),
        _table(("code", "id", "means"), others),
        "## Limits that hold where nobody says otherwise",
        _table(("fact", "value", "what", "source"), limits),
        "## Kernel messages",
        _table(("code", "means", "verdict", "counts", "pattern"), lines),
        "### NVIDIA Xids (`gpu/xid`)",
        "A number that is not here is a warning.",
        _table(("Xid", "means", "verdict"), numbers),
    ]
    return "\n\n".join(parts) + "\n"


def _line(c: Check) -> Sequence[object]:
    return (*_said(c.code), c.severity, c.scope, c.when, ", ".join(c.needs), ", ".join(c.reads))


def _said(code: str) -> tuple[str, str, str]:
    known = explanations()[code]
    return f"`{code}`", known.id, known.title


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(str(c).replace("|", "\\|") for c in line) + " |" for line in lines)

"""The reference page of faults, as Markdown made from the catalogue.

`make docs` writes what `pages` returns into docs/reference; a test holds it fresh.
"""

from __future__ import annotations

from collections.abc import Iterator

from fairlead.lab.faults.catalog import KINDS, Kind

NAME = "lab-faults.md"

_HEAD = """\
<!-- made by `make docs`; do not edit -->

# Faults of a lab

    fairlead lab fault KIND TARGET [NAME=VALUE ...]      inject one
    fairlead lab fault --heal WHICH                      a number, a kind, a target, or all
    fairlead lab fault --script FILE                     play a timeline
    fairlead lab status                                  what is in force

Faults are reversible, may overlap in any order, and heal one by one: a link stays down for as long as anyone wants it
down. What is in force is written to the lab's record before it is done. No part of fairlead knows of a fault: each is
a change of the kernel's or of a file, by the tool in the last column.

| target | written | for example |
| --- | --- | --- |
| link | a plane and a host, or a plane and two switches | `p2/n3`, `p2/t0-1/t1-0` |
| switch | a plane and a switch | `p2/t0-1`, `p0/t1-0` |
| host | its name | `n3` |
| pair | from the first to the second | `n0:n3` |

`*` stands for any one part: `p*/n3` is every port of a host, `p0/*` every host port of a plane.
"""

_TAIL = """\
## Timelines

    # seconds   what
    0           silent-drop p2/n3
    2.5         loss p*/n1 percent=5 side=up
    5           heal silent-drop p2/n3
    10          heal all

Times count from the start of the script. The file is checked whole before the first line is played. Faults in force at
its end stay in force; when it is interrupted, those it injected are healed.

## What the tools can and cannot do

- **No netem.** Many kernels are built without it, so no fault needs it: loss, marks, drops and black holes are nftables
  rules at the ingress of a port (before anything else the kernel does with a packet), rates are token buckets.
- **Silent drop** takes effect with the commit of its nftables rule at each end, which the command waits for: no packet
  is received after it returns. Neighbours are permanent entries, so nothing else notices either.
- **Reordering** needs packets to be overtaken by: a chosen packet waits in a queue that has just its share of the link.
  On an idle link nothing is overtaken.
- **ECN marks** are on the outer header. Programs that send to micro-segment lists see them; the kernel does not copy
  them inwards when it takes an outer header off, so programs that use the fabric address do not.
- **Clock skew** reaches programs that are started, and dynamically linked, while it is in force; the kernel's own
  clock is one for all hosts.
- **Slow node** needs a cgroup with the cpu controller: root has one, an ordinary user only where it is delegated.
- **Node hung** freezes by cgroup; where a lab has none, every process gets SIGSTOP, which its parent could see.
- **Facts** (versions, HCAs, files) change what a host shows, not what it does: a host without `mlx5_2` still has its
  port in plane 2.
- **File** reaches what a host has for itself: below /etc, /var/lib, /tmp, /run, /mnt, /var/log, /usr/local/bin, and its
  facts. Programs and home directories are the machine's, shared by all hosts, and are refused. Healed, a file is what
  it was.
"""


def pages() -> dict[str, str]:
    """File name -> Markdown."""
    return {NAME: page()}


def page() -> str:
    """The whole page."""
    return "\n".join([_HEAD, "## Kinds\n", *_kinds(), "", _TAIL])


def _kinds() -> Iterator[str]:
    yield "| kind | on | what | settings | done by |"
    yield "| --- | --- | --- | --- | --- |"
    for kind in KINDS.values():
        yield f"| `{kind.name}` | {kind.on} | {kind.help} | {_settings(kind)} | {kind.how} |"


def _settings(kind: Kind) -> str:
    said = [
        f"`{name}`: {setting.help}" + (f" (`{setting.default}`)" if setting.default is not None else "")
        for name, setting in kind.settings.items()
    ]
    return "; ".join(said).replace("|", "\\|")

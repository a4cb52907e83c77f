"""The programs that run on nodes, made of the parts in `onnode`: the watch itself, and the look at it."""

from __future__ import annotations

from fairlead.base.program import Program

_PROBE = "fairlead.probe.readers"
_OURS = "fairlead.watch.onnode"
WATCH = (
    "fairlead.base.trust",
    *(f"{_PROBE}.{name}" for name in ("tree", "host", "infiniband", "imds")),
    "fairlead.checks.datapath",
    "fairlead.checks.vmname",
    *(f"{_OURS}.{name}" for name in (
        "wire", "rdma", "links", "ethtool", "owners", "rates", "path", "reconcile", "rules", "judge", "chain",
        "metrics", "serve", "sample", "main",
    )),
)  # fmt: skip
LOOK = ("fairlead.base.trust", "fairlead.cluster.channel", f"{_OURS}.chain", f"{_OURS}.look")


def watch_source() -> str:
    """The watch as one file of Python 3.9 and its standard library; its argument is a settings file, or the JSON."""
    return Program.of("fairlead-watch", *WATCH, call="sys.exit(watch_main(sys.argv[1:]))").source.decode()


def look_program() -> Program:
    """What a look at a node runs there."""
    return Program.of("fairlead-watch-look", *LOOK, call="look_main()")

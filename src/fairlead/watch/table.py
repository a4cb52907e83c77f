"""`[watch]` in the cluster file."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from fairlead.base.suggest import did_you_mean
from fairlead.spec.model import Spec
from fairlead.spec.problems import Problems


class Watch(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The auditor that runs on every node."""

    period_s: Annotated[float, Meta(ge=1, le=600)] = 10.0
    """How often a node is looked at."""

    glance_s: Annotated[float, Meta(ge=0.2, le=600)] = 2.0
    """How often, between looks, it is asked who has an RDMA device open: a program that lives shorter may be missed."""

    folder: str = ""
    """Where a node keeps its audit records; left out, /var/lib/fairlead/watch/NODE, or below the user's state
    directory."""

    listen: Annotated[str, Meta(examples=["127.0.0.1:9464"])] = ""
    """Address and port of a Prometheus endpoint on each node; left out, there is none."""

    token_file: Annotated[str, Meta(examples=["/etc/fairlead/watch.token"])] = ""
    """The file on each node that holds the endpoint's token, mode 600."""

    textfile: Annotated[str, Meta(examples=["/var/lib/node_exporter/fairlead_watch.prom"])] = ""
    """Where a node writes the same metrics for node_exporter's textfile collector; left out, nowhere."""

    allowed: Annotated[tuple[str, ...], Meta(examples=[["slurm", "kernel:ib_ipoib", "user:admin"]])] = ()
    """Who may move bytes over RDMA: `slurm` (a job), `container`, `kernel`, `user:NAME`, `comm:NAME`, `kernel:NAME`.
    Left out, everybody who shows."""

    limits: Annotated[dict[str, Annotated[float, Meta(ge=0)]], Meta(examples=[{"vf_share": 0.9}])] = {}
    """Other numbers, by the names `fairlead limits watch` lists: vf_share = 0.9, symbol_error = 50, ..."""


KINDS = ("slurm", "container", "kernel", "user:", "comm:", "kernel:")


def rules(spec: Spec, report: Problems) -> None:
    """What must fit together: names of numbers, an endpoint and its token, words of `allowed`."""
    ours = spec.table(Watch)
    if ours.limits:
        _known_limits(ours, report)
    for index, word in enumerate(ours.allowed):
        fits = word in KINDS[:3] or any(word.startswith(kind) and len(word) > len(kind) for kind in KINDS[3:])
        if not fits:
            path = ("watch", "allowed", index)
            report(path, "watch/bad-settings", f"`{word}` names nobody; {did_you_mean(word, KINDS)}")
    if ours.listen:
        _endpoint(ours, report)
    for name in ("folder", "token_file", "textfile"):
        if getattr(ours, name) and not getattr(ours, name).startswith("/"):
            report(("watch", name), "watch/bad-settings", "a path on the nodes begins with /")


def _known_limits(ours: Watch, report: Problems) -> None:
    from fairlead.watch.settings import counters, numbers

    known = [*numbers(), *counters()]
    for name in ours.limits:
        if name not in known:
            why = f"no number `{name}`; {did_you_mean(name, known)}"
            report(("watch", "limits", name), "watch/bad-settings", why, on="key")


def _endpoint(ours: Watch, report: Problems) -> None:
    from fairlead.watch.onnode.serve import BadEndpoint, address_of

    try:
        address_of(ours.listen)
    except BadEndpoint as error:
        report(("watch", "listen"), "watch/bad-endpoint", str(error))
    if not ours.token_file:
        text = "an endpoint needs a token: name its file on the nodes as `token_file`"
        report(("watch", "listen"), "watch/bad-endpoint", text)

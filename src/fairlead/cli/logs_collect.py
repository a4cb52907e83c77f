"""`fairlead logs collect`: what nodes write, to the owner of the store, as it is written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from fairlead.cli.common import Common, Exclude, Nodes, SpecFile
from fairlead.cli.output import Answer
from fairlead.cli.service import answer_about, reached
from fairlead.errors import FairleadError, UsageError

Flag = Annotated[bool, Parameter(negative=())]


def collect(
    *files: str,
    server: str = "",
    token_file: Path | None = None,
    authority: Path | None = None,
    journal: Flag = False,
    kmsg: Flag = False,
    spool_mib: int = 1024,
    folder: str = "",
    node: str = "",
    central: Flag = False,
    on_nodes: Flag = False,
    stop: Flag = False,
    nodes: Nodes = None,
    exclude: Exclude = "",
    spec: SpecFile = None,
    common: Common = Common(),
) -> Answer:
    """Send what this machine writes to its logs to `fairlead logs serve`, as it is written; or have nodes do so.

    Files are followed through rotation by rename, by copy and truncation, and compression. What the server does not
    take waits on this disk, within --spool-mib; each line is in the store once. What was rotated before it ever looked
    is left to `fairlead logs import`. What is lost beyond the bound is counted, and said in the table collect_CL.

    Parameters
    ----------
    files
        Patterns of files, such as '/var/log/*.log' '/shared/jobs/**/*.out'; quote them, as they are looked for again.
    server
        The URL of `fairlead logs serve`; https:// where it has a certificate.
    token_file
        The server's token file; with --on-nodes each node is given a token of its own that is made of it.
    authority
        With https://: certificates to trust, in PEM, instead of the system's; with --on-nodes, a file on each node.
    journal
        The systemd journal, too, from this boot on.
    kmsg
        The kernel's own log, too (/dev/kmsg).
    spool_mib
        So much may wait on the disk.
    folder
        Where it waits; else /var/lib/fairlead/collect/NODE, or below the user's state directory.
    node
        Whose lines these are; else this machine's name.
    central
        This machine keeps the logs of others (rsyslog, a shared folder): a line of syslog is of the host that it names.
    on_nodes
        Have the nodes of the cluster file collect from now on, as a service; fairlead itself need not be there.
    stop
        With --on-nodes: end it. What was not sent stays there.
    """
    if stop:
        if not on_nodes:
            raise UsageError("cli/usage", "--stop goes with --on-nodes", hint="fairlead logs collect --on-nodes --stop")
        from fairlead.logs.collect import stop as end

        with reached(nodes, exclude, spec, common) as (cluster, wanted, pythons, _):
            return answer_about("logs-collect", end(cluster, wanted, python=pythons), wanted)
    if not server or token_file is None:
        raise UsageError("cli/usage", "name --server and --token-file", hint="fairlead logs collect --help")
    if not (files or journal or kmsg):
        raise UsageError("cli/usage", "name files, --journal or --kmsg", hint="fairlead logs collect '/var/log/*.log'")
    if relative := next((each for each in files if not each.startswith("/")), None):
        raise UsageError("cli/usage", f"`{relative}` is no whole path", hint="'/var/log/*.log'")
    if central and on_nodes:
        raise UsageError("cli/usage", "a central log host is one machine, so --central goes without --on-nodes",
                         hint="on that machine: fairlead logs collect --central '/var/log/remote/*.log'")  # fmt: skip
    from fairlead.logs.collect import settings_of

    more: dict[str, Any] = {"spool_bytes": max(spool_mib, 4) << 20, "journal": journal, "kmsg": kmsg, "folder": folder}
    if authority:
        more["authority"] = str(authority.absolute())
    settings = settings_of(server, files, **more)
    if on_nodes:
        return _on_nodes(settings, token_file, (nodes, exclude, spec, common))
    from fairlead.logs.onnode.agent import agent_main

    said = settings | {"token_file": str(token_file.absolute()), "is_secret": True, "node": node, "central": central}
    if status := agent_main([json.dumps(said)]):
        raise FairleadError("logs/collector", f"the collector ended with {status}", hint="it said why above")
    return Answer(schema="fairlead.logs-collect/1", text="ended; what was not sent waits for the next time", body={})


def _on_nodes(settings: dict[str, Any], token_file: Path, chosen: tuple[Any, Any, Any, Common]) -> Answer:
    from fairlead.base.trust import read_file
    from fairlead.logs.collect import start

    try:
        secret = read_file(token_file, 4096, ours=True).strip()
    except OSError as error:
        raise UsageError("cli/usage", f"{token_file}: {error.strerror or error}", hint="--token-file FILE") from None
    with reached(*chosen) as (cluster, wanted, pythons, _):
        states = start(cluster, wanted, settings, secret, python=pythons)
    return answer_about("logs-collect", states, wanted, "fairlead service ls collect")

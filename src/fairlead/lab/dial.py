"""`ssh`'s ProxyCommand for a lab: connect from inside the lab's management namespace, hand the socket over, leave."""

from __future__ import annotations

import array
import socket
import sys

from fairlead.errors import FairleadError
from fairlead.lab import store
from fairlead.lab import syscalls as sc


def main() -> None:
    """`dial LAB NODE PORT`, with a socket to ssh as standard output (ProxyUseFdpass)."""
    name, node, port = sys.argv[1:]
    try:
        state = store.running(name)
        assert state.keeper is not None
        host = state.host(node)
        if host is None:
            sys.exit(f"fairlead lab {name}: no host {node}")
        sc.enter(f"/proc/{state.keeper.pid}/root/run/netns/mgmt", sc.CLONE_NEWNET)
        connection = socket.create_connection((host.management, int(port)), timeout=5)
    except (FairleadError, OSError) as error:
        sys.exit(f"fairlead lab {name}: {node} port {port}: {error}")
    connection.settimeout(None)
    with socket.socket(fileno=1) as ssh:
        ssh.sendmsg([b"\0"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [connection.fileno()]))])


if __name__ == "__main__":
    main()

"""Puts a node's token where its collector finds it, for the node's own eyes; it comes on standard input."""

from __future__ import annotations

import json
import os
import sys

from fairlead.base.trust import own_folder
from fairlead.logs.onnode.agent import folder_of, node_called
from fairlead.logs.onnode.sources import write_whole

TOKEN_NAME = "token"  # noqa: S105 - a name of a file
"""In the collector's folder."""


def place_main() -> int:
    """One line of JSON: folder, node, token."""
    os.umask(0o077)
    said = json.loads(sys.stdin.readline(65536))
    folder = own_folder(folder_of(said["folder"], said["node"] or node_called()))
    write_whole(os.path.join(folder, TOKEN_NAME), said["token"].encode() + b"\n")
    return 0

"""A BitTorrent peer for `weights_spread.py`, tuned as a cluster would: no trackers, everybody unchoked, TCP alone.

    python torrent_node.py TORRENT FOLDER ADDRESS PEER...

Prints `done` when it has everything, and serves on until its input ends.
"""

from __future__ import annotations

import sys
import time

import libtorrent as lt

PORT = 6881


def main() -> None:
    """One file, from the web seed of the torrent and from the peers."""
    torrent, folder, address, *peers = sys.argv[1:]
    settings = {
        "listen_interfaces": f"[{address}]:{PORT}" if ":" in address else f"{address}:{PORT}",
        "enable_dht": False, "enable_lsd": False, "enable_upnp": False, "enable_natpmp": False,
        "enable_outgoing_utp": False, "enable_incoming_utp": False, "unchoke_slots_limit": -1,
        "allow_multiple_connections_per_ip": True, "request_queue_time": 10, "max_out_request_queue": 1000,
        "ssrf_mitigation": False, "connection_speed": 200, "urlseed_wait_retry": 1,
    }  # fmt: skip
    session = lt.session(settings)
    wanted = lt.add_torrent_params()
    wanted.ti, wanted.save_path = lt.torrent_info(torrent), folder
    handle = session.add_torrent(wanted)
    for peer in peers:
        handle.connect_peer((peer, PORT))
    while not handle.status().is_seeding:
        time.sleep(0.02)
    print("done", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()

"""Bytes and their owners: does every port that moved bytes have somebody who could have moved them? Pure.

Port counters know bytes and no owner; RDMA netlink knows owners and no bytes (mlx5 publishes no byte counters per
queue pair). So the question is asked per port and window: bytes above what management needs, and nobody who held a
queue pair, or an open context, on it then or just before. What it cannot see: a stranger's bytes beside a rightful
owner's on the same port.
"""

from __future__ import annotations

from fairlead.watch.onnode.owners import label

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MANAGEMENT = ("SMI", "GSI")
"""Queue pairs 0 and 1 of every port: the kernel's own, for the subnet manager and connection set-up."""


def holders(sample: dict[str, Any]) -> dict[str, set[str]] | None:
    """Port (`mlx5_0/1`) or device (`mlx5_0`) -> keys of who holds something on it; None where nobody could tell."""
    qps, contexts = sample.get("qps"), sample.get("ctxs")
    if not isinstance(qps, list):
        return None
    found: dict[str, set[str]] = {}
    for qp in qps:
        if qp["type"] not in MANAGEMENT:
            found.setdefault("%s/%s" % (qp["dev"], qp.get("port", 1)), set()).add(key_of(qp))
    # objects made past the kernel's lists (mlx5 DEVX) show as an open context alone
    for context in contexts if isinstance(contexts, list) else []:
        found.setdefault(context["dev"], set()).add(key_of(context))
    for pid, device in sample.get("openers", {}).items():
        found.setdefault(device, set()).add(str(pid))
    for device, pids in sample.get("glanced", {}).items():
        found.setdefault(device, set()).update(str(pid) for pid in pids)
    return found


def key_of(thing: dict[str, Any]) -> str:
    """An owner as a key: the process, the kernel's part, or `?` for a process that ended and left it behind."""
    return str(thing["pid"]) if "pid" in thing else "kernel:" + thing["kern"] if thing.get("kern") else "?"


def owner_of(key: str, owners: dict[int, dict[str, Any]]) -> dict[str, Any]:
    """What is known of who has a key."""
    if key.startswith("kernel:"):
        return {"kern": key[7:]}
    return owners.get(int(key), {"pid": int(key), "gone": True}) if key.isdigit() else {"comm": "ended"}


def is_allowed(owner: dict[str, Any], allowed: list[str]) -> bool:
    """Whether an owner may move bytes: with no list, everybody.

    Words: `slurm` (a job), `container`, `kernel`, `user:NAME`, `comm:NAME`, `kernel:NAME`.
    """
    if not allowed:
        return True
    words = {
        "slurm" if owner.get("job_by") == "cgroup" else "",
        "container" if owner.get("container") or owner.get("pod") else "",
        "kernel" if owner.get("kern") else "",
        "user:%s" % owner.get("user"),
        "user:%s" % owner.get("uid"),
        "comm:%s" % owner.get("comm"),
        "kernel:%s" % owner.get("kern"),
    }
    return bool(words & set(allowed))


class Ledger:
    """Who held what, until when."""

    def __init__(self, grace_s: float) -> None:
        self.grace_s = grace_s
        self.last_held: dict[str, dict[str, float]] = {}
        """Port or device -> key -> when it was last seen to hold something there."""
        self.strikes: dict[str, int] = {}

    def see(self, at_s: float, held: dict[str, set[str]]) -> None:
        """Take what is held now."""
        for place, keys in held.items():
            self.last_held.setdefault(place, {}).update(dict.fromkeys(keys, at_s))
        for place in list(self.last_held):
            kept = {k: at for k, at in self.last_held[place].items() if at >= at_s - 10 * self.grace_s}
            if kept:
                self.last_held[place] = kept
            else:
                del self.last_held[place]

    def holders_of(self, port: str, since_s: float) -> list[str]:
        """Who held something on a port, or on its device, at or after a time."""
        places = (port, port.rpartition("/")[0])
        return sorted({k for p in places for k, at in self.last_held.get(p, {}).items() if at >= since_s})

    def judge(
        self, port: str, num_bytes: int | None, length_s: float, began_s: float,
        owners: dict[int, dict[str, Any]], *, allowed: list[str], background: float,
    ) -> dict[str, Any]:  # fmt: skip
        """One port and window: `state` is quiet, owned, unowned, not-allowed or unknown; `by` who it was; `strikes`."""
        keys = self.holders_of(port, began_s - self.grace_s)
        by = [owner_of(key, owners) for key in keys]
        if num_bytes is None:
            return {"state": "unknown", "by": by, "strikes": self.strikes.get(port, 0)}
        if num_bytes <= background * length_s:
            self.strikes[port] = 0
            return {"state": "quiet", "by": by, "strikes": 0}
        state = "unowned" if not by else "owned" if any(is_allowed(o, allowed) for o in by) else "not-allowed"
        self.strikes[port] = 0 if state == "owned" else self.strikes.get(port, 0) + 1
        return {"state": state, "by": by, "strikes": self.strikes[port]}


def connections(cm_ids: Any, owners: dict[int, dict[str, Any]], allowed: list[str]) -> list[dict[str, str]]:
    """Connections that rdma_cm made: `dev`, `src`, `dst`, `who` has it and as which `user`, and the Slurm `job`.

    What listens has no other end; what the kernel has is nobody's job. Nor is a service that `allowed` names. Without
    a job the last is empty.
    """
    services = [word for word in allowed if ":" in word]
    found = []
    for one in cm_ids if isinstance(cm_ids, list) else ():
        owner = owner_of(key_of(one), owners)
        if (
            owner.get("kern")
            or owner.get("gone")
            or (services and not owner.get("job") and is_allowed(owner, services))
        ):
            continue
        if one.get("src") and one.get("dst"):
            found.append({"dev": one["dev"], "src": one["src"], "dst": one["dst"], "who": label(owner),
                          "user": str(owner.get("user", "")), "job": str(owner.get("job", ""))})  # fmt: skip
    return found


def talkers(ports: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Who moves most: `who`, `ports`, bytes a second that are theirs alone, and those they share with others.

    `ports`: name -> {"bps": bytes a second, "by": owners}. A port with several owners says nothing of their shares.
    """
    found: dict[str, dict[str, Any]] = {}
    for name, port in ports.items():
        names = sorted({label(owner) for owner in port["by"]})
        for who in names:
            row = found.setdefault(who, {"who": who, "ports": [], "alone_bps": 0.0, "shared_bps": 0.0})
            row["ports"].append(name)
            row["alone_bps" if len(names) == 1 else "shared_bps"] += port["bps"] or 0.0
    return sorted(found.values(), key=lambda r: (-r["alone_bps"], -r["shared_bps"], r["who"]))

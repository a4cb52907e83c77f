"""Rules about the ordinary network of a node (id S7), and what a file says of its place in it."""

from __future__ import annotations

import msgspec

from fairlead.checks.node import Node, Outcome, bad, ok, skip
from fairlead.records.addressbook import PLACE, Place

NAMES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")


def socket_interface(n: Node, part: str) -> Outcome:
    """The interfaces that jobs are told to use exist, are up and have an address."""
    settings = {**n.get("host.nccl_conf"), **n.get("host.environment")}
    wanted = {name: settings[name] for name in NAMES if settings.get(name)}
    if not wanted:
        return skip("neither NCCL_SOCKET_IFNAME nor GLOO_SOCKET_IFNAME is set")
    links = n.get("net.links")
    for name, rule in wanted.items():
        usable = [link for link in links if _takes(rule, link) and _is_usable(n, link)]
        if not usable:
            known = [link for link in links if _takes(rule, link)]
            why = f"{', '.join(known)} is down or has no address" if known else "no such interface"
            return bad(f"{name}={rule}: {why}", **wanted)
    return ok(", ".join(f"{k}={v}" for k, v in wanted.items()), **wanted)


def _takes(rule: str, link: str) -> bool:
    """NCCL's reading: `^` excludes, `=` matches whole names, else prefixes; loopback and docker only if named."""
    excludes, names = rule.startswith("^"), rule.lstrip("^")
    exact, names = names.startswith("="), names.lstrip("=")
    hit = any(link == name if exact else link.startswith(name) for name in names.split(",") if name)
    return hit != excludes and not (excludes and link.startswith(("lo", "docker")))


def _is_usable(n: Node, link: str) -> bool:
    return n.get("net.links", link, "operstate") in ("up", "unknown") and bool(n.get("net.links", link, "addresses"))


def default_route(n: Node, part: str) -> Outcome:
    """The interface of the default route is up."""
    name = n.get("net.default_interface")
    if not name:
        return skip("the node has no IPv4 default route")
    state = n.get("net.links", name, "operstate")
    return ok(f"{name} is up") if state in ("up", "unknown") else bad(f"{name} is {state}", value=state)


IFF_MASTER = 0x400
"""linux include/uapi/linux/if.h: of an interface made of others."""


def bonds(n: Node) -> list[str]:
    """Interfaces made of others, for more of them than one to fail."""
    found = []
    for link in n.get("net.links"):
        flags = n.get("net.links", link, "flags")
        if flags.startswith("0x") and int(flags, 16) & IFF_MASTER:
            found.append(link)
    return found


def bond(n: Node, part: str) -> Outcome:
    """More than one interface carries a bond: with one alone, the next fault is the last.

    One that is down carries none, whosever it is; of one that is up it must be known.
    """
    kind, mtu = n.get("net.links", part, "type"), n.get("net.links", part, "mtu")
    carry, down = [], []
    for link in n.get("net.links"):
        if link == part or n.get("net.links", link, "type") != kind:
            continue
        state = n.get("net.links", link, "operstate")
        if state == "up" and n.get("net.links", link, "mtu") == mtu:  # a bond gives its interfaces its own
            carry += [link] if n.get("net.links", link, "master") == part else []
        elif state != "up" and n.peek("net.links", link, "master") in (part, None):
            down.append(link)
    data = {"carry": carry, "down": down}
    if len(carry) > 1 and not down:
        return ok(f"{len(carry)} interfaces up", **data)
    idle = f"; down: {', '.join(down[:4])}" if down else ""
    return bad(f"{', '.join(carry) or 'nothing'}{' alone' * (len(carry) == 1)} carries it{idle}", **data)


def place(n: Node, part: str) -> Outcome:
    """What a file says of the node's place in the fabric can be used; else what is found is taken, without a word."""
    hole = n.hole("net.place")
    if hole is not None and NO_JSON not in hole.why:
        raise hole
    if hole is not None:
        return bad(f"{PLACE} is no JSON, so it is not used")
    found = n.get("net.place")
    try:
        msgspec.convert(found, Place)
    except msgspec.ValidationError as error:
        return bad(f"{PLACE} is not used: {error}")
    return ok(f"{PLACE} says where the node is") if found else skip(f"there is no {PLACE}")


NO_JSON = "is not the JSON it should be"
"""What the probe says of a file that is none."""

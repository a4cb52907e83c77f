"""Captured nodes of others, with their authors' labels: how a case is laid out, and what a label asks for.

The README beside the captures describes the format of a case.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.captures import captures_root

NODE = "tree"
"""The node's name: the name of the folder a case's tree lies in, which is also what its cluster.toml says."""

CODES: dict[str, tuple[str, ...]] = {
    "any": ("",),
    "rate": ("ib/port-rate",),
    "port state": ("ib/port-state",),
    "pkey": ("ib/pkey",),
    "lid": ("ib/lid",),
    "ipoib": ("ib/ipoib",),
    "count": ("gpu/count", "ib/count"),
    "gpu": ("gpu/",),
    "nvlink": ("gpu/nvlink",),
    "mig": ("gpu/mig",),
    "persistence": ("gpu/persistence",),
    "busy": ("gpu/busy",),
    "pcie": ("gpu/pcie-width",),
    "ecc": ("gpu/ecc", "gpu/row-remap"),
    "xid": ("gpu/xid",),
    "throttle": ("gpu/throttle",),
    "temperature": ("gpu/temperature",),
    "kernel": ("host/kernel-faults", "ib/kernel-messages"),
    "netdev": ("net/",),
    "flap": ("ib/flaps",),
    "same subnet": ("net/same-subnet",),
    "vf lost": ("net/vf-lost",),
    "vf": ("net/vf",),
    "revocation": ("net/revocations",),
    "data path": ("net/data-path",),
    "unmanaged": ("net/vf-managed", "net/vf-rules"),
    "driver": ("net/no-driver", "net/vf-drivers"),
}
"""A label's word for a fact -> the beginnings of the codes that tell it."""


OF_A_LOG = ("flap", "vf lost", "revocation", "data path")
"""Facts that a log alone can tell."""


def with_log() -> list[str]:
    """Cases that have a log of their own."""
    root = captures_root()
    return [name for name in names() if root is not None and (root / name / "log.txt").is_file()]


def names() -> list[str]:
    """Every case that is there."""
    root = captures_root()
    return sorted(file.parent.name for file in root.glob("*/case.json")) if root else []


@dataclass(frozen=True)
class Case:
    """One case."""

    folder: Path
    label: dict[str, Any]

    @property
    def expect(self) -> dict[str, Any]:
        return dict(self.label["expect"])

    @property
    def audited(self) -> dict[str, Any]:
        """What an audit must tell: the label of a probe, and what only an audit can know."""
        found = self.expect
        more = found.get("audit", {})
        found["any"] = [*found.get("any", ()), *more.get("any", ())]
        if "must_not_warn" in more:
            found["must_not_warn"] = more["must_not_warn"]
        return found

    def lay_out(self, root: Path) -> Path:
        """The case's tree below a folder: that of the case it lies over first, then its own, then its log."""
        tree = root / NODE
        over = self.label.get("over")
        for folder in (*((self.folder.parent / over,) if over else ()), self.folder):
            if (folder / "tree").is_dir():
                shutil.copytree(folder / "tree", tree, symlinks=True, dirs_exist_ok=True)
        tree.mkdir(exist_ok=True)
        absent = self.label.get("absent")
        if absent:
            with (tree / "absent").open("a") as file:
                file.write("".join(f"{line}\n" for line in absent))
        log, kmsg = self.folder / "log.txt", tree / "dev" / "kmsg"
        if log.is_file() and not kmsg.exists() and re.match(rb"\d+,\d+,\d+,[^;]*;", log.read_bytes()):
            kmsg.parent.mkdir(exist_ok=True)
            shutil.copyfile(log, kmsg)
        return tree

    def words(self, tree: Path) -> list[str]:
        """`fairlead probe` on the tree, against what the case names."""
        words = ["probe", "--root", str(tree), "--json"]
        spec = self.folder / "cluster.toml"
        if spec.is_file():
            return [*words, "-f", str(spec)]
        return [*words, "--size", self.label.get("vm_size") or "other"]


def case(name: str) -> Case:
    root = captures_root()
    assert root is not None
    folder = root / name
    return Case(folder, json.loads((folder / "case.json").read_text()))


# ---- findings against a label ---------------------------------------------------------------------------------------


def is_about(finding: dict[str, Any], wanted: dict[str, Any]) -> bool:
    """Whether a finding tells the fact of a label, on its device."""
    if wanted["what"] not in CODES:
        raise LookupError(f"the harness does not know what `{wanted['what']}` of a label means")
    if not finding["code"].startswith(CODES[wanted["what"]]):
        return False
    device = wanted.get("device")
    about = finding["subject"].get("name", "")
    return device is None or device in (about, about.rpartition("/")[0]) or f"{device}/" in finding["message"]


def wrongs(findings: Iterable[dict[str, Any]], expect: dict[str, Any]) -> list[str]:
    """Everything a verdict on a case has wrong, by its label; nothing where it is right."""
    told = [f for f in findings if f["verdict"] in ("fail", "warn")]
    out: list[str] = []
    wanted: list[dict[str, Any]] = []
    for verdict in ("fail", "warn"):
        facts = expect.get(verdict, ())
        wanted += facts
        out += [
            f"no {verdict}: {w}" for w in facts if not any(f["verdict"] == verdict and is_about(f, w) for f in told)
        ]
    wanted += expect.get("any", ())
    out += [f"not told: {w}" for w in expect.get("any", ()) if not any(is_about(f, w) for f in told)]
    wanted += [{"what": word} for word in expect.get("also", ())]
    beyond = [f for f in told if not any(is_about(f, fact) for fact in wanted)]
    out += [f"beyond the label: {f['verdict']} {f['code']} {f['message']}" for f in beyond]
    for word in expect.get("not_also", ()):
        out += [f"a consequence told as a fault: {f['message']}" for f in told if is_about(f, {"what": word})]
    for verdict in ("fail", "warn"):
        if expect.get(f"must_not_{verdict}") and not expect.get(verdict):
            out += [f"must not {verdict}: {f['code']}" for f in told if f["verdict"] == verdict]
    return out + _unseen(list(findings), expect)


def paths_wrong(paths: dict[str, dict[str, Any]], expect: dict[str, Any]) -> list[str]:
    """What is wrong with each NIC's path and with the windows without a VF, by a label's `audit`."""
    label, nics = expect.get("audit", {}), next(iter(paths.values()), {})
    out = []
    for nic, path in label.get("final", {}).items():
        if nics.get(nic, {}).get("path") != path:
            out.append(f"{nic} ends on {nics.get(nic, {}).get('path')}, not on {path}")
    out += [f"{nic} has a path, by no label" for nic in nics if "final" in label and nic not in label["final"]]
    if "revocation" not in label:
        return out
    found = [w for row in nics.values() for w in row["windows"]]
    wanted, tolerance = label["revocation"]["windows"], label["revocation"].get("tol_s", 1.0)
    if len(found) != label["revocation"]["count"]:
        return [*out, f"{len(found)} windows, not {label['revocation']['count']}"]
    for mine, theirs in zip(found, wanted, strict=True):
        for key in ("start_s", "duration_s"):
            a, b = mine[key], theirs[key]
            if (a is None) != (b is None) or (a is not None and abs(a - b) > tolerance):
                out.append(f"{key} is {a}, not {b}")
        if mine["nic"] != theirs["nic"]:
            out.append(f"a window of {mine['nic']}, not of {theirs['nic']}")
    return out


def _unseen(findings: list[dict[str, Any]], expect: dict[str, Any]) -> list[str]:
    """What had to be read and judged, or had to be left open, and was not."""
    out = []
    for fact in expect.get("sees", ()):
        judged = [
            f for f in findings if f["verdict"] in ("pass", "warn", "fail") and is_about(f, {**fact, "device": None})
        ]
        seen = sum(len(f.get("data", {}).get("parts", ())) or 1 for f in judged)
        if seen < fact["num"]:
            out.append(f"judged {seen} of {fact['num']}: {fact['what']}")
    open_ = [f for f in findings if f["verdict"] == "unknown"]
    left_open = [f"not left open: {w}" for w in expect.get("unknown", ()) if not any(is_about(f, w) for f in open_)]
    return out + left_open

"""What Slurm prints of a node, version by version, written from its sources; nothing here was captured on a machine.

Text: slurm_sprint_node_table() in src/api/node_info.c. JSON: _dump_node() in src/plugins/openapi/v0.0.37 and v0.0.38,
PARSER_ARRAY(NODE) in src/plugins/data_parser/v0.0.39 and v0.0.43.
"""

from __future__ import annotations

import json

_HEAD = (
    "NodeName={name} Arch=x86_64 CoresPerSocket=48  CPUAlloc=0 {cpus}CPUTot=96 CPULoad=0.05 AvailableFeatures=gpu "
    "ActiveFeatures=gpu Gres=gpu:h100:8(S:0-1) NodeAddr=10.0.0.7 NodeHostName={name} Version={version} "
    "OS=Linux 5.15.0-1073-azure #82-Ubuntu SMP Tue Sep 10  RealMemory=1900000 AllocMem=0 FreeMem=1800000 Sockets=2 "
    "Boards=1 State={state} ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A Partitions=hpc  "
    "BootTime=2026-11-01T08:00:00 SlurmdStartTime=2026-11-01T08:01:00 "
)
_TRES = "CfgTRES=cpu=96,mem=1900000M,billing=96,gres/gpu=8 AllocTRES= "
_POWER = "CapWatts=n/a CurrentWatts=0 AveWatts=0 ExtSensorsJoules=n/s ExtSensorsWatts=0 ExtSensorsTemp=n/s "
VERSIONS = ("20.11", "22.05", "23.02", "25.05")


def line(version: str, state: str, *, reason: str = "", comment: str = "", name: str = "n7") -> str:
    """`scontrol show node -o`. A reason's first line has the stamp behind it, the others follow."""
    cpus = "" if version == "20.11" else "CPUEfctv=96 "
    text = _HEAD.format(name=name, version=f"{version}.1", state=state, cpus=cpus)
    text += {"20.11": "", "22.05": "LastBusyTime=2026-11-02T00:00:00 "}.get(
        version, "LastBusyTime=2026-11-02T00:00:00 ResumeAfterTime=None "
    )
    text += _TRES + ("CurrentWatts=n/a AveWatts=n/a" if version == "25.05" else _POWER.rstrip())
    if reason:
        first, *more = reason.split("\n")
        text += f" Reason={first} [root@2026-11-20T10:00:00]" + "".join(f"        {m}" for m in more)
    if version == "20.11":
        text += f" Comment={comment or '(null)'}"
    elif comment:
        text += f" Comment={comment}"
    if version == "25.05":
        text += " Extra=rack=7 InstanceId=i-1 InstanceType=x ReservationName=r Topology=default:s1:b2"
    return text + " "


def document(version: str, states: list[str], *, reason: str = "", name: str = "n7") -> str:
    """`scontrol show nodes --json`; 20.11 has none."""
    common = {"name": name, "address": "10.0.0.7", "hostname": name, "gres": "gpu:h100:8(S:0-1)", "cpus": 96}
    if version in ("21.08", "22.05"):
        said = {"state": states[0].lower(), "state_flags": states[1:], "reason": reason or None}
        said |= {"reason_changed_at": 1795168800 if reason else 0, "reason_set_by_user": "root" if reason else None}
    else:
        when = {"set": bool(reason), "infinite": False, "number": 1795168800 if reason else 0}
        said = {"state": states, "reason": reason, "reason_changed_at": when if version != "23.02" else when["number"]}
        said |= {"reason_set_by_user": "root" if reason else "", "cluster_name": ""}
    return json.dumps({"meta": {"Slurm": {"version": version}}, "nodes": [common | said], "errors": []})

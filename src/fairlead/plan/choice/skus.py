"""What a region sells: the JSON that `az vm list-skus --location REGION --resource-type virtualMachines` prints.

The format is that of the Resource SKUs API of Microsoft.Compute (api-version 2021-07-01 and later): a list of SKUs,
each with capabilities (name and value as text) and restrictions (type Location or Zone, and a reason code).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec
from msgspec import Struct

from fairlead.base.trust import TooLarge, read_file
from fairlead.base.units import whole
from fairlead.errors import UsageError

MAX_BYTES = 256 << 20
"""`az vm list-skus --all` of every region is about 80 MB."""
COMMAND = "az vm list-skus --location REGION --resource-type virtualMachines --all -o json"


class _Capability(Struct):
    name: str
    value: str | None = None


class _Restriction(Struct):
    type: str | None = None
    reason_code: str | None = msgspec.field(name="reasonCode", default=None)


class _Sku(Struct):
    name: str
    resource_type: str = msgspec.field(name="resourceType", default="")
    locations: list[str] | None = None
    capabilities: list[_Capability] | None = None
    restrictions: list[_Restriction] | None = None


class Offer(Struct, frozen=True, kw_only=True):
    """One VM size as a region sells it."""

    name: str
    regions: tuple[str, ...] = ()
    restricted: str = ""
    """Why this subscription cannot have it, in the API's word; empty where it can."""
    rdma: bool | None = None
    accelerated_networking: bool | None = None
    gpus: int | None = None


def read_offers(path: Path, region: str = "") -> dict[str, Offer]:
    """The offers of a region by VM size in small letters; of all regions in the file where none is named.

    Raises UsageError (`plan/skus`) for a file that is none of these.
    """
    try:
        rows = msgspec.json.decode(read_file(path, MAX_BYTES), type=list[_Sku])
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        why = f"it is larger than {MAX_BYTES >> 20} MiB" if isinstance(error, TooLarge) else _why(error)
        raise UsageError(
            "plan/skus", f"cannot read {path} as a list of SKUs: {why}", hint=f"{COMMAND} > skus.json"
        ) from None
    found: dict[str, Offer] = {}
    for row in rows:
        where = tuple(name.casefold() for name in row.locations or ())
        if row.resource_type == "virtualMachines" and (not region or region.casefold() in where):
            found[row.name.casefold()] = _offer(row, where)
    if not found:
        there = f" of region {region}" if region else ""
        raise UsageError("plan/skus", f"{path} lists no VM sizes{there}", hint=f"{COMMAND} > skus.json")
    return found


def _offer(row: _Sku, where: tuple[str, ...]) -> Offer:
    says = {c.name: c.value or "" for c in row.capabilities or ()}
    # a restriction by zone leaves the other zones; one by location leaves nothing
    closed = [r.reason_code or "restricted" for r in row.restrictions or () if r.type != "Zone"]
    return Offer(
        name=row.name,
        regions=where,
        restricted=closed[0] if closed else "",
        rdma=_flag(says, "RdmaEnabled"),
        accelerated_networking=_flag(says, "AcceleratedNetworkingEnabled"),
        gpus=whole(says.get("GPUs"), 4),
    )


def _flag(says: Mapping[str, str], name: str) -> bool | None:
    return {"true": True, "false": False}.get(says.get(name, "").casefold())


def _why(error: Exception) -> str:
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return str(error)

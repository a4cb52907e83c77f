"""The cluster file and what is known about VM sizes; topology and addresses as pure arithmetic.

    spec.read(path)        the file, complete, with origins and warnings; spec.load(path) for the Spec alone
    spec.size(name)        what a VM size has, with sources; spec.contract_of(spec, pool) what a pool's nodes must be
    spec.topology, .usid   counts, names, paths and SRv6 addresses of a fabric

Names are loaded when they are first used: `fairlead.spec.topology` alone must stay light.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fairlead.spec.contract import Contract, contract_of
    from fairlead.spec.docs import json_schema
    from fairlead.spec.loader import Loaded, load, preset, preset_names, preset_text, read
    from fairlead.spec.model import Pool, Spec, Waiver
    from fairlead.spec.resolve import OVERRIDES, Origin
    from fairlead.spec.vmsize import Tier, VmSize, size, sizes, storage

_HOME = {
    "contract": ("Contract", "contract_of"),
    "docs": ("json_schema",),
    "loader": ("Loaded", "load", "preset", "preset_names", "preset_text", "read"),
    "model": ("Pool", "Spec", "Waiver"),
    "resolve": ("OVERRIDES", "Origin"),
    "vmsize": ("Tier", "VmSize", "size", "sizes", "storage"),
}

__all__ = [
    "OVERRIDES",
    "Contract",
    "Loaded",
    "Origin",
    "Pool",
    "Spec",
    "Tier",
    "VmSize",
    "Waiver",
    "contract_of",
    "json_schema",
    "load",
    "preset",
    "preset_names",
    "preset_text",
    "read",
    "size",
    "sizes",
    "storage",
]


def __getattr__(name: str) -> Any:
    for module, names in _HOME.items():
        if name in names:
            return getattr(importlib.import_module(f"fairlead.spec.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

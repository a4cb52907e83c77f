"""Whether an event that the platform has scheduled is about this machine. Pure; Python 3.9, its standard library alone.

The metadata service tells every VM the events of all VMs of its availability set or of its scale set's placement group,
and `Resources` names those concerned (learn.microsoft.com: azure/virtual-machines/linux/scheduled-events, Scope). They
are names of resources, which a machine's own name need not be: an instance of a uniform scale set is called
{scale set}_{instance ID}, the ID a decimal number, and its computer name is {prefix}{the ID in base 36, six digits}
(azure/virtual-machine-scale-sets/virtual-machine-scale-sets-instance-ids; `nsgvmss` 85 is nsgvmss00002D there). AKS
takes the scale set's name as the prefix, so the node aks-pool-123-vmss00000a is the VM aks-pool-123-vmss_10. Azure does
not tell upper from lower case in names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_RESOURCE = re.compile(r"(?P<set>.+)_(?P<id>\d{1,10})", re.ASCII)
_COMPUTER = re.compile(r"(?P<set>.+)(?P<id>[0-9a-z]{6})", re.ASCII)


def concerns(event: Mapping[str, Any], vm: object, host: object) -> bool | None:
    """`vm`: the name that the service gives this machine, which decides; `host`: its own, where there is no other.

    None where nobody can tell: a computer name may have a prefix of its own, so one that does not fit says nothing.
    """
    named = event.get("Resources")
    if not isinstance(named, list) or not named:
        return True
    if isinstance(vm, str) and vm:
        return any(same_vm(vm, one) for one in named)
    return True if isinstance(host, str) and host and any(same_vm(host, one) for one in named) else None


def same_vm(one: object, other: object) -> bool:
    """Whether two names are of one VM: the same name, or the resource's and the computer's of one instance."""
    a, b = (str(name).casefold() for name in (one, other))
    return a == b or _instances(a, b) or _instances(b, a)


def _instances(resource: str, computer: str) -> bool:
    named, called = _RESOURCE.fullmatch(resource), _COMPUTER.fullmatch(computer.partition(".")[0])
    if named is None or called is None:
        return False
    return named["set"] == called["set"] and int(named["id"]) == int(called["id"], 36)

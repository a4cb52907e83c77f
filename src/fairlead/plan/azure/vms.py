"""`az` commands for nodes of Slurm: a scale set in one placement group, a shared file system. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from fairlead.plan.azure.shell import script, step
from fairlead.plan.choice.storage import StorageChoice
from fairlead.plan.wanted import Planned, PoolWanted, Wanted

MAX_GROUP = 100
"""VMs of one placement group without asking for more (Azure documentation, setup-infiniband.md: 300 on request)."""


def scale_sets(wanted: Wanted, storage: StorageChoice | None) -> list[Planned]:
    """A script that creates every pool."""
    title = f"Nodes of {wanted.cluster}: one scale set a pool"
    text = script(title, list(_create(wanted, storage)))
    return [
        Planned(path="azure/create-nodes.sh", text=text, about="az commands: group, network, nodes", executable=True)
    ]


def _create(wanted: Wanted, storage: StorageChoice | None) -> Iterator[str]:
    group, region = wanted.resource_group, wanted.said.region or "$REGION"
    vnet = f"{wanted.cluster}-vnet"
    if not wanted.said.region:
        yield ': "${REGION:?set REGION to an Azure region}"'
    yield step("The group.", ["az", "group", "create", "--name", group, "--location", region])
    subnet = ["az", "network", "vnet", "subnet", "create", "--resource-group", group, "--vnet-name", vnet]
    prefixes = ["--address-prefixes"]
    commands = [
        [
            "az",
            "network",
            "vnet",
            "create",
            "--resource-group",
            group,
            "--name",
            vnet,
            "--location",
            region,
            *prefixes,
            "10.224.0.0/16",
        ],
        [*subnet, "--name", "nodes", *prefixes, "10.224.0.0/17"],
    ]
    if storage is not None:
        commands.append([*subnet, "--name", "storage", *prefixes, "10.224.128.0/24"])
    yield step("The network. 172.16.0.0/16 is InfiniBand's own on these VMs and must stay free.", *commands)
    for pool in wanted.pools:
        yield step(_words(pool), _scale_set(wanted, pool, vnet, region))
    if storage is not None and storage.chosen is not None:
        chosen = storage.chosen
        what = f"{chosen.tier.name} of {chosen.tib:g} TiB: {chosen.mbs:,.0f} MB/s."
        about = f"The shared file system, for {'; '.join(storage.asked)}.\n{what}"
        yield (
            f"SUBNET_ID=$(az network vnet subnet show --resource-group {group} --vnet-name {vnet} --name storage "
            "--query id --output tsv)"
        )
        yield step(
            about,
            [
                *("az", "amlfs", "create", "--resource-group", group, "--name", f"{wanted.cluster}-fs"),
                *("--location", region, "--sku", chosen.tier.name, "--storage-capacity", f"{chosen.tib:g}"),
                *("--zones", "[1]", "--filesystem-subnet", "$SUBNET_ID"),
                *("--maintenance-window", "{dayOfWeek:friday,timeOfDayUtc:22:00}"),
            ],
        )


def _scale_set(wanted: Wanted, pool: PoolWanted, vnet: str, region: str) -> list[str]:
    return [
        *("az", "vmss", "create", "--resource-group", wanted.resource_group, "--name", f"{wanted.cluster}-{pool.name}"),
        *("--location", region, "--orchestration-mode", "Uniform", "--single-placement-group", "true"),
        *("--platform-fault-domain-count", "1", "--disable-overprovision"),
        *("--vm-sku", pool.size.name, "--instance-count", str(len(pool.nodes)), "--image", wanted.said.image),
        *("--accelerated-networking", "true" if pool.size.accelerated_networking else "false"),
        *("--vnet-name", vnet, "--subnet", "nodes", "--admin-username", "azureuser", "--generate-ssh-keys"),
        *("--upgrade-policy-mode", "manual", "--lb", ""),
    ]


def _words(pool: PoolWanted) -> str:
    text = f"{pool.name}: {len(pool.nodes)} x {pool.size.name}."
    if pool.is_infiniband:
        text += " One placement group: VMs of two groups share no InfiniBand."
    if len(pool.nodes) > MAX_GROUP:
        text += f"\nMore than {MAX_GROUP} VMs in one placement group: ask Azure's support for it first."
    return text

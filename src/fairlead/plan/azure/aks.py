"""`az` commands for an AKS cluster with GPU and InfiniBand pools: public, private, or with no way out. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

from fairlead.plan.azure.shell import Command, script, step
from fairlead.plan.kubernetes.parts import TOLERATIONS, versions
from fairlead.plan.kubernetes.variant import Variant
from fairlead.plan.wanted import Planned, PoolWanted, Wanted

TAINT = f"{TOLERATIONS[0]['key']}={TOLERATIONS[0]['value']}:{TOLERATIONS[0]['effect']}"
IMAGE_SOURCES = (("nvcr.io/nvidia", "nvidia"), ("ghcr.io/azure", "azure"), ("docker.io/rocm", "rocm"))
"""(public repository, its place in the site's registry) of what the manifests name: `mirrored` exchanges the host."""
_REGISTER = """# AKS places a pool on one InfiniBand network only with this feature; without it pods of two nodes
# may not reach each other by RDMA, and nothing shows it.
az feature register --namespace Microsoft.ContainerService --name AKSInfinibandSupport --output none
until [ "$(az feature show --namespace Microsoft.ContainerService --name AKSInfinibandSupport \\
    --query properties.state --output tsv)" = Registered ]; do sleep 10; done
az provider register --namespace Microsoft.ContainerService"""


def aks(wanted: Wanted, variant: Variant) -> list[Planned]:
    """A script that creates the cluster, and one that installs what runs on it."""
    title = f"AKS cluster {wanted.cluster}: {variant.about}"
    create = script(title, list(_create(wanted)))
    install = script(f"What runs on {wanted.cluster}, in order", list(_install(wanted, variant)))
    return [
        Planned(path="azure/create-aks.sh", text=create, about="az commands: group, cluster, pools", executable=True),
        Planned(path="kubernetes/install.sh", text=install, about="kubectl and helm, in order", executable=True),
    ]


def _create(wanted: Wanted) -> Iterator[str]:
    group, name = wanted.resource_group, wanted.cluster
    region = wanted.said.region or "$REGION"
    if not wanted.said.region:
        yield ': "${REGION:?set REGION to an Azure region}"'
    yield step("The group.", ["az", "group", "create", "--name", group, "--location", region])
    if wanted.has_rdma:
        yield _REGISTER
    network: Command = []
    if wanted.said.api_server != "public":
        yield from _private_network(wanted, group, region)
        network = ["--vnet-subnet-id", "$SUBNET_ID", "--assign-identity", "$IDENTITY_ID", *_api_server(wanted)]
    create = [
        *("az", "aks", "create", "--resource-group", group, "--name", name, "--location", region),
        *("--node-count", "3", "--node-vm-size", "Standard_D8ds_v5", "--os-sku", "Ubuntu"),
        *("--network-plugin", "azure", "--network-plugin-mode", "overlay", "--enable-managed-identity"),
        *("--generate-ssh-keys", *network),
    ]
    yield step("The cluster, with a small pool for what is not the job.", create)
    for pool in wanted.pools:
        yield step(_pool_words(wanted, pool), _pool(wanted, pool))
    get = ["az", "aks", "get-credentials", "--resource-group", group, "--name", name]
    yield step("Credentials for kubectl." + _where_from(wanted), get)


def _private_network(wanted: Wanted, group: str, region: str) -> Iterator[str]:
    """A virtual network with no way out, a registry inside, identities: what an isolated cluster pulls from."""
    closed = wanted.said.api_server == "isolated"
    vnet = f"{wanted.cluster}-vnet"
    subnet = ["az", "network", "vnet", "subnet", "create", "--resource-group", group, "--vnet-name", vnet]
    yield step(
        "The network. Subnets of an isolated cluster have no default way out." if closed else "The network.",
        [
            *("az", "network", "vnet", "create", "--resource-group", group, "--name", vnet, "--location", region),
            *("--address-prefixes", "10.224.0.0/12"),
        ],
        [
            *(*subnet, "--name", "nodes", "--address-prefixes", "10.224.0.0/16"),
            *("--default-outbound-access", "false" if closed else "true"),
        ],
        [*subnet, "--name", "endpoints", "--address-prefixes", "10.225.0.0/24"],
    )
    yield (
        f"SUBNET_ID=$(az network vnet subnet show --resource-group {group} --vnet-name {vnet} --name nodes "
        "--query id --output tsv)"
    )
    names = [f"{wanted.cluster}-id", *([f"{wanted.cluster}-kubelet"] if closed else [])]
    yield step(
        "Identities: one for the cluster; one for the nodes, which pull images." if closed else "The identity.",
        *(["az", "identity", "create", "--resource-group", group, "--name", name] for name in names),
    )
    yield (
        f"IDENTITY_ID=$(az identity show --resource-group {group} --name {names[0]} --query id --output tsv)\n"
        f"IDENTITY=$(az identity show --resource-group {group} --name {names[0]} --query principalId --output tsv)\n"
        'az role assignment create --assignee-object-id "$IDENTITY" --assignee-principal-type ServicePrincipal '
        '--role "Network Contributor" --scope "$SUBNET_ID"'
    )
    if closed:
        yield from _registry(wanted, group, region, vnet, names[1])


def _registry(wanted: Wanted, group: str, region: str, vnet: str, kubelet: str) -> Iterator[str]:
    registry = re.sub(r"[^a-z0-9]", "", wanted.cluster) + "images"
    yield step(
        "The registry: reached from inside alone, and filled by a rule that caches what AKS's nodes start from.",
        [
            *("az", "acr", "create", "--resource-group", group, "--name", registry, "--location", region),
            *("--sku", "Premium", "--public-network-enabled", "false"),
        ],
        [
            *("az", "acr", "cache", "create", "--registry", registry, "--name", "aks-managed-mcr"),
            *("--source-repo", "mcr.microsoft.com/*", "--target-repo", "aks-managed-repository/*"),
        ],
    )
    yield step(
        "What the operators' pods pull, cached on first use by whoever in the network asks for it.",
        *(
            [
                *("az", "acr", "cache", "create", "--registry", registry, "--name", target.replace("/", "-")),
                *("--source-repo", f"{source}/*", "--target-repo", f"{target}/*"),
            ]
            for source, target in IMAGE_SOURCES
        ),
    )
    yield f"REGISTRY_ID=$(az acr show --name {registry} --query id --output tsv)"
    zone = "privatelink.azurecr.io"
    yield step(
        "Its address inside the network.",
        [
            *("az", "network", "private-endpoint", "create", "--resource-group", group, "--name", f"{registry}-in"),
            *("--vnet-name", vnet, "--subnet", "endpoints", "--group-id", "registry"),
            *("--private-connection-resource-id", "$REGISTRY_ID", "--connection-name", registry),
        ],
        ["az", "network", "private-dns", "zone", "create", "--resource-group", group, "--name", zone],
        [
            *("az", "network", "private-dns", "link", "vnet", "create", "--resource-group", group, "--name", vnet),
            *("--zone-name", zone, "--virtual-network", vnet, "--registration-enabled", "false"),
        ],
        [
            *("az", "network", "private-endpoint", "dns-zone-group", "create", "--resource-group", group),
            *("--endpoint-name", f"{registry}-in", "--name", "registry", "--zone-name", "registry"),
            *("--private-dns-zone", zone),
        ],
    )
    yield (
        f"KUBELET_ID=$(az identity show --resource-group {group} --name {kubelet} --query id --output tsv)\n"
        f"KUBELET=$(az identity show --resource-group {group} --name {kubelet} --query principalId --output tsv)\n"
        'az role assignment create --assignee-object-id "$KUBELET" --assignee-principal-type ServicePrincipal '
        '--role AcrPull --scope "$REGISTRY_ID"'
    )


def _api_server(wanted: Wanted) -> Command:
    private = ["--enable-private-cluster", "--private-dns-zone", "system"]
    if wanted.said.api_server == "private":
        return private
    return [
        *(*private, "--outbound-type", "none", "--assign-kubelet-identity", "$KUBELET_ID"),
        *("--bootstrap-artifact-source", "Cache", "--bootstrap-container-registry-resource-id", "$REGISTRY_ID"),
    ]


def _pool(wanted: Wanted, pool: PoolWanted) -> Command:
    """AKS names pools with 12 small letters and digits."""
    words = [
        *("az", "aks", "nodepool", "add", "--resource-group", wanted.resource_group),
        *("--cluster-name", wanted.cluster, "--name", pool_name(pool)),
        *("--node-count", str(len(pool.nodes)), "--node-vm-size", pool.size.name, "--os-sku", "Ubuntu"),
        *("--labels", f"fairlead/pool={pool.name}"),
    ]
    if not pool.gpus:
        return words
    words += ["--node-taints", TAINT]
    if most := wanted.said.autoscale_to:
        words += [
            "--enable-cluster-autoscaler",
            "--min-count",
            str(min(len(pool.nodes), most)),
            "--max-count",
            str(most),
        ]
    if pool.size.gpu_vendor != "nvidia":
        return [*words, "--gpu-driver", "none"]
    if wanted.said.gpu_driver == "managed":
        return [*words, "--gpu-driver", "install", "--tags", "EnableManagedGPUExperience=true"]
    return [*words, "--gpu-driver", "none" if wanted.said.gpu_driver == "operator" else "install"]


def pool_name(pool: PoolWanted) -> str:
    """A pool's name as AKS takes it.

    >>> from fairlead.base.nodeset import NodeSet
    >>> from fairlead.spec.vmsize import VmSize
    >>> pool_name(PoolWanted(name="h100-train", nodes=NodeSet("a"), size=VmSize(name="x")))
    'h100train'
    """
    name = re.sub(r"[^a-z0-9]", "", pool.name)[:12]
    return name if name[:1].isalpha() else f"p{name}"[:12]


def _pool_words(wanted: Wanted, pool: PoolWanted) -> str:
    text = f"{pool.name}: {len(pool.nodes)} x {pool.size.name}."
    if pool.size.gpu_vendor == "nvidia":
        text += {
            "operator": "\n--gpu-driver none: the GPU Operator installs the driver; the two exclude each other.",
            "aks": "\nAKS installs the driver: the GPU Operator must not.",
            "managed": "\nAKS installs driver, device plugin and metrics (preview; Kubernetes 1.34 or newer).",
        }[wanted.said.gpu_driver]
    if pool.size.gpu_vendor == "amd":
        text += "\nAKS installs no AMD driver: the image must bring it, or AMD's operator (driver.enable)."
    return text


def _where_from(wanted: Wanted) -> str:
    if wanted.said.api_server == "public":
        return ""
    return " From inside the virtual network: the API server has no public address."


def _install(wanted: Wanted, variant: Variant) -> Iterator[str]:
    """Objects are applied, charts installed, in the order of their files; tests are left to the reader."""
    found = versions()
    chart_at = {
        "nvidia/network-operator": ("network-operator", found["network-operator"]["chart"]),
        "nvidia/gpu-operator": ("gpu-operator", found["gpu-operator"]["chart"]),
        "rocm/gpu-operator-charts": ("kube-amd-gpu", found["amd-gpu-operator"]["chart"]),
    }
    yield 'cd "$(dirname "$0")"'
    if repos := [c.partition("/")[0] for c in variant.values]:
        urls = {"nvidia": "https://helm.ngc.nvidia.com/nvidia", "rocm": "https://rocm.github.io/gpu-operator"}
        adds = [["helm", "repo", "add", repo, urls[repo], "--force-update"] for repo in dict.fromkeys(repos)]
        yield step("Charts. In a cluster with no way out, from a copy of them.", *adds)
    tests = []
    for part in variant.parts:
        file = part.path.removeprefix("kubernetes/")
        if part.chart:
            place, version = chart_at[part.chart]
            words = ["helm", "upgrade", "--install", "--wait", "--namespace", place, place, part.chart]
            yield step(part.about, [*words, "--version", version, "--values", file])
        elif file[0] < "4":
            yield step(part.about, ["kubectl", "apply", "--server-side", "-f", file])
        else:
            tests.append(f"#   kubectl apply -f {file}    {part.about}")
    mpi = f"https://raw.githubusercontent.com/kubeflow/mpi-operator/{found['mpi-operator']['chart']}/deploy/v2beta1/mpi-operator.yaml"
    yield step("The MPI operator, for the all-reduce.", ["kubectl", "apply", "--server-side", "-f", mpi])
    yield "\n".join(
        ["# Tests, one by one, once every node shows its GPUs and RDMA ports (kubectl describe nodes):", *tests]
    )

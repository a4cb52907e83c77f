"""A device plugin: it advertises devices of one resource to a kubelet and hands them out to containers.

It speaks `v1beta1` of the kubelet's device plugin API over the kubelet's socket, as NVIDIA's and the RDMA plugins do.
Messages and numbers: https://kubernetes.io/docs/concepts/extend-kubernetes/compute-storage-net/device-plugins/, and
package k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1 named there. The devices it hands out do nothing.
"""

from __future__ import annotations

import queue
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_FIELDS = {
    "Empty": "",
    "Options": "pre_start_required:bool=1 get_preferred_allocation_available:bool=2",
    "RegisterRequest": "version:string=1 endpoint:string=2 resource_name:string=3 options:Options=4",
    "NumaNode": "id:int64=1",
    "Topology": "nodes:*NumaNode=1",
    "Device": "id:string=1 health:string=2 topology:Topology=3",
    "ListAndWatchResponse": "devices:*Device=1",
    "ContainerRequest": "ids:*string=1",
    "AllocateRequest": "containers:*ContainerRequest=1",
    "Pair": "key:string=1 value:string=2",  # how a map<string, string> travels
    "DeviceSpec": "container_path:string=1 host_path:string=2 permissions:string=3",
    "ContainerResponse": "envs:*Pair=1 devices:*DeviceSpec=3",
    "AllocateResponse": "containers:*ContainerResponse=1",
}
_TYPES = {"bool": 8, "string": 9, "int64": 3}
_MESSAGE, _OPTIONAL, _REPEATED = 11, 1, 3


def _messages() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="device_plugin.proto", package="v1beta1", syntax="proto3")
    for name, text in _FIELDS.items():
        message = file.message_type.add(name=name)
        for word in text.split():
            field, _, rest = word.partition(":")
            kind, _, number = rest.partition("=")
            made = message.field.add(name=field, number=int(number), label=_REPEATED if kind[0] == "*" else _OPTIONAL)
            plain = kind.removeprefix("*")
            made.type = _TYPES.get(plain, _MESSAGE)
            if made.type == _MESSAGE:
                made.type_name = f".v1beta1.{plain}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    classes = {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"v1beta1.{name}")) for name in _FIELDS}
    return type("Messages", (), classes)


M = _messages()


class DevicePlugin:
    """`number` devices of `resource`, half of them on each of two NUMA nodes, as in a server of eight.

    A container sees those it was given as `shown`0, `shown`1, ..., and named in its environment as `variable`.
    """

    def __init__(self, folder: Path, resource: str, number: int, *, shown: str, variable: str) -> None:
        self.folder, self.resource, self.shown, self.variable = folder, resource, shown, variable
        self.ids = [f"{resource.rpartition('/')[2]}-{index}" for index in range(number)]
        self.health = dict.fromkeys(self.ids, "Healthy")
        self.given: list[list[str]] = []
        """Ids of every container that was given any, in order."""
        self._news: queue.Queue[bool] = queue.Queue()
        self._socket = folder / f"{resource.replace('/', '-')}.sock"
        self._server = grpc.server(ThreadPoolExecutor(4))
        calls = {
            "GetDevicePluginOptions": (grpc.unary_unary_rpc_method_handler, lambda *_: M.Options(), M.Empty),
            "ListAndWatch": (grpc.unary_stream_rpc_method_handler, self._watch, M.Empty),
            "Allocate": (grpc.unary_unary_rpc_method_handler, self._allocate, M.AllocateRequest),
        }
        handlers = {
            name: make(
                call, request_deserializer=asked.FromString, response_serializer=lambda said: said.SerializeToString()
            )
            for name, (make, call, asked) in calls.items()
        }
        self._server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("v1beta1.DevicePlugin", handlers)])

    def __enter__(self) -> Self:
        self._server.add_insecure_port(f"unix://{self._socket}")
        self._server.start()
        request = M.RegisterRequest(version="v1beta1", endpoint=self._socket.name, resource_name=self.resource)
        with grpc.insecure_channel(f"unix://{self.folder}/kubelet.sock") as channel:
            register = channel.unary_unary(
                "/v1beta1.Registration/Register",
                request_serializer=lambda said: said.SerializeToString(),
                response_deserializer=M.Empty.FromString,
            )
            register(request, timeout=20)
        return self

    def __exit__(self, *_: object) -> None:
        self._news.put(False)
        self._server.stop(1).wait()
        self._socket.unlink(missing_ok=True)

    def set_health(self, device: str, *, is_healthy: bool) -> None:
        """Tell the kubelet that a device is lost, or back."""
        self.health[device] = "Healthy" if is_healthy else "Unhealthy"
        self._news.put(True)

    def _watch(self, _request: object, _context: object) -> Iterator[Any]:
        goes_on = True
        while goes_on:
            half = max(1, len(self.ids) // 2)
            yield M.ListAndWatchResponse(
                devices=[
                    M.Device(
                        id=name, health=self.health[name], topology=M.Topology(nodes=[M.NumaNode(id=index // half)])
                    )
                    for index, name in enumerate(self.ids)
                ]
            )
            goes_on = self._news.get()

    def _allocate(self, request: Any, _context: object) -> Any:
        made = []
        for asked in request.containers:
            self.given.append(sorted(asked.ids))
            devices = [
                M.DeviceSpec(
                    container_path=f"{self.shown}{self.ids.index(name)}", host_path="/dev/null", permissions="rw"
                )
                for name in asked.ids
            ]
            envs = [M.Pair(key=self.variable, value=",".join(sorted(asked.ids)))]
            made.append(M.ContainerResponse(envs=envs, devices=devices))
        return M.AllocateResponse(containers=made)

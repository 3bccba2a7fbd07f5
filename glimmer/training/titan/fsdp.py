"""Lets torch 2.13's FSDP shard parameters that carry `spmd_types` annotations.

Symptom without it: `ValueError: When dp_mesh_dims is provided, all parameters must be DTensors on
the full SPMD mesh`, for every trainer of more than one GPU: torchtitan 0.3.0 builds Muse Glimmer
with annotated plain tensors, which torch reads from its pull request 181519 on.

A parameter is a DTensor while it is sharded (what optimiser, clipping, checkpoint and weight sync
want) and a plain annotated tensor while it is whole (what torchtitan's forward wants). Its gradient
comes back plain; the type of a replicated parameter says that each rank holds a part of the sum.
"""

from __future__ import annotations

from typing import Any

import spmd_types as spmd
import torch
from spmd_types.runtime import get_local_type, get_partition_spec, has_local_type
from spmd_types.types import normalize_axis
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp._fully_shard import _fsdp_param
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.placement_types import Placement

from glimmer.errors import GlimmerError


def _sharded_dim(spec: Any, axis: Any) -> int | None:
    """The dimension of the tensor that `axis` splits, by a partition spec."""
    for dim, entry in enumerate(spec or ()):
        if entry == axis or (isinstance(entry, tuple) and axis in entry):
            return dim
    return None


def placements(
    param: torch.Tensor, mesh: DeviceMesh, data_parallel: frozenset[str]
) -> tuple[tuple[Placement, ...], tuple[Placement, ...]]:
    """Placements on `mesh` of an annotated parameter, and of its gradient as autograd leaves it.

    Args:
        param: local tensor with an `spmd_types` annotation.
        mesh: named; data-parallel axes (which FSDP shards later) and tensor parallelism.
        data_parallel: names of the data-parallel axes.

    Raises:
        GlimmerError: a type that a parameter cannot have.
    """
    types, spec = get_local_type(param), get_partition_spec(param)
    own: list[Placement] = []
    grad: list[Placement] = []
    for index, name in enumerate(mesh.mesh_dim_names):
        if name in data_parallel:
            own.append(Replicate())
            grad.append(Partial())
            continue
        axis = normalize_axis(mesh.get_group(index))
        kind = types.get(axis, spmd.I)  # axes of one rank are not noted
        dim = _sharded_dim(spec, axis)
        if kind is spmd.V and dim is not None:
            own.append(Shard(dim))
            grad.append(Shard(dim))
        elif kind is spmd.R:
            own.append(Replicate())
            grad.append(Partial())
        elif kind is spmd.I:
            own.append(Replicate())
            grad.append(Replicate())
        else:
            raise GlimmerError(
                f"a parameter of shape {tuple(param.shape)} has type {kind} on mesh axis {name!r}; "
                "FSDP can store replicated, invariant and sharded ones only."
            )
    return tuple(own), tuple(grad)


class AnnotatedFSDPParam(_fsdp_param.FSDPParam):
    """`FSDPParam` that stores an annotated parameter as a DTensor and gives it back as it was."""

    _annotation: tuple[Any, Any] | None = None
    _grad_placements: tuple[Placement, ...] = ()

    def _init_sharded_param(self, param, device, shard_placement_fn, mesh_info) -> None:
        if mesh_info.is_spmd_mesh and not isinstance(param, DTensor) and has_local_type(param):
            dims = mesh_info.dp_mesh_dims
            data_parallel = frozenset((*dims.shard_names, *dims.replicate_names))
            mesh = mesh_info.spmd_mesh
            own, self._grad_placements = placements(param, mesh, data_parallel)
            self._annotation = (get_local_type(param), get_partition_spec(param))
            with torch.no_grad():
                stored = DTensor.from_local(param.detach(), mesh, own, run_check=False)
            param = nn.Parameter(stored, requires_grad=param.requires_grad)
        super()._init_sharded_param(param, device, shard_placement_fn, mesh_info)

    def init_unsharded_param(self) -> None:
        if self._annotation is None or hasattr(self, "_unsharded_param"):
            super().init_unsharded_param()
            return
        spec, self._unsharded_dtensor_spec = self._unsharded_dtensor_spec, None
        try:
            super().init_unsharded_param()
        finally:
            self._unsharded_dtensor_spec = spec
        spmd.assert_type(self._unsharded_param, *self._annotation)

    def _get_grad_inner_tensor(self, grad: torch.Tensor) -> torch.Tensor:
        if self._annotation is not None and not isinstance(grad, DTensor):
            grad = DTensor.from_local(
                grad, self._unsharded_dtensor_spec.mesh, self._grad_placements, run_check=False
            )
        return super()._get_grad_inner_tensor(grad)


def apply() -> None:
    """Put `AnnotatedFSDPParam` where FSDP makes its parameters. Called again, nothing more.

    Raises:
        GlimmerError: torch's FSDP reads the annotations itself, or has another form.
    """
    from torch.distributed.fsdp._fully_shard import _fsdp_param_group

    if _fsdp_param_group.FSDPParam is AnnotatedFSDPParam:
        return
    methods = ("_init_sharded_param", "init_unsharded_param", "_get_grad_inner_tensor")
    if _fsdp_param_group.FSDPParam is not _fsdp_param.FSDPParam or any(
        not hasattr(_fsdp_param.FSDPParam, name) for name in methods
    ):
        raise GlimmerError(
            f"torch {torch.__version__}: its FSDP is not the one that glimmer.training.titan.fsdp "
            "was written for (2.13). Install the locked environment again (envs/train)."
        )
    _fsdp_param_group.FSDPParam = AnnotatedFSDPParam

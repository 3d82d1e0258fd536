"""Sharding a model over the ranks (FSDP2): each holds a part of every block and gathers it when it is needed."""

from collections import Counter

from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from transformers import PreTrainedModel

DATA_PARALLEL = "data_parallel"


def shard(model: PreTrainedModel, mesh: DeviceMesh | None) -> None:
    """Shards a model in place, block by block. Weights that two parts share stay with the model as a whole.

    Args:
        model: Its `_no_split_modules` name the classes that Transformers keeps in one piece: those are the blocks.
        mesh: The ranks, with an axis ``data_parallel``.

    Raises:
        ValueError: If there is no such axis.
    """
    if mesh is None or DATA_PARALLEL not in (mesh.mesh_dim_names or ()):
        raise ValueError(f"trainer.strategy: sharding needs a device mesh with an axis called {DATA_PARALLEL}")
    ranks = mesh[DATA_PARALLEL]
    blocks = set(model._no_split_modules or ())
    places = Counter(id(weight) for _, weight in model.named_parameters(remove_duplicate=False))
    for module in list(model.modules()):
        tied = any(places[id(weight)] > 1 for weight in module.parameters())
        if type(module).__name__ in blocks and module is not model and not tied:
            fully_shard(module, mesh=ranks)
    fully_shard(model, mesh=ranks)

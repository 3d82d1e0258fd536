"""Keeps what training does not change out of checkpoints."""

import zlib
from typing import Any, Final

import lightning.pytorch as pl
import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

LEFT_OUT: Final = "left_out."
"""Begins, in a checkpoint's ``state_dict``, the name of a weight that is not there; its checksum is."""


class TrainableOnly(pl.Callback):
    """Leaves frozen weights that are as the pretrained model has them out of every checkpoint.

    A weight that was trained and then frozen is saved. A checkpoint holds the checksum of what it leaves out, so that
    it loads into a model made from the same pretrained weights and into no other: besides those, every weight must be
    there and none may be over. Loading needs this callback; the exported model is complete. With nothing frozen it
    changes nothing.

    Raises:
        ValueError: When a checkpoint is loaded into a model whose pretrained weights differ.
    """

    def __init__(self) -> None:
        self._pretrained: dict[str, int] = {}
        self._checksums: dict[str, tuple[int, int, int]] = {}
        self._hook: RemovableHandle | None = None

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Has loading go through here."""
        self._pretrained = {}
        if self._hook is not None:
            self._hook.remove()
        self._hook = pl_module.register_load_state_dict_pre_hook(self._put_back)

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Notes the weights as the pretrained model has them, unless they were noted before a checkpoint was loaded."""
        self._pretrained = self._pretrained or self._checksums_of(pl_module)

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Has loading be as before."""
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Puts checksums in the place of frozen weights."""
        state: dict[str, Tensor] = checkpoint["state_dict"]
        for name, weight in pl_module.named_parameters(remove_duplicate=False):
            if weight.requires_grad or name not in state:
                continue
            checksum = self._checksum(name, weight)
            if checksum == self._pretrained.get(name):
                del state[name]
                state[LEFT_OUT + name] = torch.tensor(checksum)

    def _put_back(self, module: torch.nn.Module, state_dict: dict[str, Tensor], *_: Any) -> None:
        """Fills in what a checkpoint left out, from the model itself, before the weights are loaded strictly."""
        weights = dict(module.named_parameters(remove_duplicate=False))
        self._pretrained = self._pretrained or self._checksums_of(module)
        left_out = [name.removeprefix(LEFT_OUT) for name in state_dict if name.startswith(LEFT_OUT)]
        differing = []
        for name in left_out:
            checksum = int(state_dict.pop(LEFT_OUT + name))
            if name not in weights or self._checksum(name, weights[name]) != checksum:
                differing.append(name)
            else:
                state_dict[name] = weights[name].detach()
        if differing:
            names = ", ".join(differing[:3]) + (", ..." if len(differing) > 3 else "")
            raise ValueError(
                f"this checkpoint leaves {len(left_out)} frozen weights to the pretrained model, but {len(differing)}"
                f" of them are not the same in this one ({names}); take the model.pretrained that the run started from"
            )

    def _checksums_of(self, module: torch.nn.Module) -> dict[str, int]:
        return {name: self._checksum(name, w) for name, w in module.named_parameters(remove_duplicate=False)}

    def _checksum(self, name: str, weight: Tensor) -> int:
        """Computes a checksum of the weight's bytes, again only if the weight has been written to since."""
        known = self._checksums.get(name, (0, 0, 0))
        if known[:2] != (id(weight), weight._version):
            content = weight.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
            known = (id(weight), weight._version, zlib.crc32(content.data))
            self._checksums[name] = known
        return known[2]

"""Keeps what training does not change out of checkpoints."""

import zlib
from typing import Any, Final

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
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
        self._frozen: dict[str, nn.Parameter] = {}
        self._copies: dict[str, Tensor] = {}
        self._is_training = False
        self._hook: RemovableHandle | None = None

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Has loading go through here."""
        self._is_training = stage == "fit"
        if self._is_training:
            self._pretrained, self._frozen, self._copies = {}, {}, {}
        self._remove_hook()
        self._hook = pl_module.register_load_state_dict_pre_hook(self._before_loading)

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Has loading be as before."""
        self._remove_hook()

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Notes the weights as the pretrained model has them, unless a checkpoint has been loaded over them."""
        self._note_pretrained(pl_module)

    def on_before_optimizer_step(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: Optimizer
    ) -> None:
        """Copies a weight that a checkpoint leaves out before it is trained after all, so that this one still loads."""
        for name in [name for name, weight in self._frozen.items() if weight.requires_grad]:
            self._copies[name] = _copy(self._frozen.pop(name))

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
                self._frozen[name] = weight
                del state[name]
                state[LEFT_OUT + name] = torch.tensor(checksum)

    def complete(self, module: nn.Module, state: dict[str, Tensor]) -> None:
        """Puts the weights that a checkpoint leaves out back into its ``state_dict``.

        Args:
            module: The module that the checkpoint is of, with these weights.
            state: The checkpoint's ``state_dict``, to be changed.

        Raises:
            ValueError: If the weights of the module are not those that were left out.
        """
        weights = dict(module.named_parameters(remove_duplicate=False))
        left_out = [name.removeprefix(LEFT_OUT) for name in state if name.startswith(LEFT_OUT)]
        differing = []
        for name in left_out:
            checksum = int(state.pop(LEFT_OUT + name))
            candidates = [weight for weight in (weights.get(name), self._copies.get(name)) if weight is not None]
            weight = next((weight for weight in candidates if _crc32(weight) == checksum), None)
            if weight is None:
                differing.append(name)
            else:
                state[name] = weight.detach()
        if differing:
            names = ", ".join(differing[:3]) + (", ..." if len(differing) > 3 else "")
            raise ValueError(
                f"this checkpoint leaves {len(left_out)} frozen weights to the pretrained model, but {len(differing)}"
                f" of them are not the same in this one ({names}); take the model.pretrained that the run started from"
            )

    def _before_loading(self, module: nn.Module, state_dict: dict[str, Tensor], *_: Any) -> None:
        if self._is_training and not self._pretrained:
            self._note_pretrained(module)
            # What is loaded over was trained; a checkpoint from before that may have left it out.
            self._copies = {n: _copy(w) for n, w in module.named_parameters(remove_duplicate=False) if n in state_dict}
        self.complete(module, state_dict)

    def _note_pretrained(self, module: nn.Module) -> None:
        weights = module.named_parameters(remove_duplicate=False)
        self._pretrained = self._pretrained or {name: self._checksum(name, weight) for name, weight in weights}

    def _checksum(self, name: str, weight: Tensor) -> int:
        """Computes a checksum of the weight, again only if it has been written to since."""
        known = self._checksums.get(name, (0, 0, 0))
        if known[:2] != (id(weight), weight._version):
            known = (id(weight), weight._version, _crc32(weight))
            self._checksums[name] = known
        return known[2]

    def _remove_hook(self) -> None:
        if self._hook is not None:
            self._hook.remove()
            self._hook = None


def _copy(weight: Tensor) -> Tensor:
    return weight.detach().cpu().clone()


def _crc32(weight: Tensor) -> int:
    return zlib.crc32(weight.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)

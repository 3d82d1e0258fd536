"""In-batch negatives: of all rows in the batch, find the one that this one belongs to."""

import torch
from torch import Tensor
from torch.nn import functional as F

from lit_trainer.batch import is_counted
from lit_trainer.losses.base import Loss
from lit_trainer.losses.gathered_rows import gather_rows


class InBatchNegatives(Loss):
    """Cross-entropy of finding each row's partner among the partners of all rows, on all ranks.

    The pair is two features by name, such as query and document or image and text: at temperature 0.05 multiple
    negatives ranking, and symmetric what CLIP trains. Or it is the row itself under two dropouts: unsupervised SimCSE.

    It sees the rows of one micro-batch over all ranks, not of the whole step: with accumulation, each row meets fewer
    others, and the training depends on ``accumulate_grad_batches`` as it does with no other kind of loss.

    Args:
        temperature: What cosine similarities are divided by; above 0.
        symmetric: Whether the first is also to be found from the second; the two losses are averaged.
        dropout_pairs: Whether a row is paired with itself under other dropout, for which the model runs twice.

    Shapes: features a pair ``{name: [B, D], name: [B, D]}``, or ``[2, B, D]`` with dropout pairs; labels ``[B]``, of
        which only matters whether they are ignored: such rows are left out altogether.

    Raises:
        ValueError: If the temperature is not a finite number above 0.

    Source:
        Henderson et al. 2017, "Efficient Natural Language Response Suggestion for Smart Reply", section 4.4;
        Gao et al. 2021, "SimCSE", equation 4; Radford et al. 2021, "Learning Transferable Visual Models", section 2.3.
    """

    def __init__(self, temperature: float = 0.05, symmetric: bool = False, dropout_pairs: bool = False) -> None:
        super().__init__()
        if not 0 < temperature < float("inf"):
            raise ValueError(f"temperature is {temperature}; it has to be a finite number above 0")
        self.temperature = temperature
        self.symmetric = symmetric
        self.dropout_pairs = dropout_pairs

    @property
    def passes(self) -> int:
        """Two in training with dropout pairs; in evaluation there is no dropout that could differ."""
        return 2 if self.dropout_pairs and self.training else 1

    @property
    def across_rows(self) -> bool:
        """True: a row is compared with those beside it."""
        return True

    def total(self, features: Tensor | dict[str, Tensor], labels: Tensor) -> Tensor:
        """Returns the sum over the rows of this rank, compared with the rows of all ranks."""
        first, second = (F.normalize(each, dim=-1) for each in self._pair(features, labels))
        (all_first, all_second, all_labels), start = gather_rows(first, second, labels)
        counted, all_counted = is_counted(labels), is_counted(all_labels)
        partners = torch.arange(len(labels), device=labels.device) + start
        left_out = counted[:, None] & ~all_counted

        def direction(rows: Tensor, candidates: Tensor) -> Tensor:
            similarity = (rows @ candidates.T / self.temperature).masked_fill(left_out, -torch.inf)
            return F.cross_entropy(similarity, partners, reduction="none").where(counted, 0).sum()

        forward = direction(first, all_second)
        return (forward + direction(second, all_first)) / 2 if self.symmetric else forward

    def _pair(self, features: Tensor | dict[str, Tensor], labels: Tensor) -> tuple[Tensor, Tensor]:
        if isinstance(features, dict):
            pair = () if self.dropout_pairs else tuple(features.values())
        elif self.dropout_pairs:
            pair = tuple(features) if self.training else (features, features)
        else:
            pair = ()
        if len(pair) != 2 or any(each.dim() != 2 or each.shape[:1] != labels.shape for each in pair):
            wanted = "[2, B, D] from two passes" if self.dropout_pairs else "two by name, each [B, D]"
            by_name = features.items() if isinstance(features, dict) else [("features", features)]
            got = ", ".join(f"{name} {list(each.shape)}" for name, each in by_name)
            raise ValueError(
                f"InBatchNegatives takes as features {wanted}, and labels [B]; got {got} and labels "
                f"{list(labels.shape)}"
            )
        return pair[0], pair[1]

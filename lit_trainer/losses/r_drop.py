"""R-Drop: another loss, and that two dropouts of the model should agree."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.nn import functional as F

from lit_trainer.batch import Labels
from lit_trainer.losses.base import Loss, of_one_head, one_pass
from lit_trainer.losses.binary_cross_entropy import BinaryCrossEntropy
from lit_trainer.losses.multi_task import MultiTask
from lit_trainer.losses.targets import class_targets, value_targets


class RDrop(Loss):
    """Runs the model twice: the mean of both losses plus alpha times how far the two predictions differ.

    The difference is the Kullback-Leibler divergence, averaged over both directions, of each row (token, or label of
    its own), times the weight that its label has in the wrapped loss. With alpha 0 it is that loss over both passes.
    In evaluation, without dropout, both passes would be the same: the model runs once and this is the wrapped loss.

    The paper adds the two losses where this, as its authors' code, takes their mean: its alpha is twice this one.

    Args:
        loss: What to wrap: a loss of class numbers, or `BinaryCrossEntropy`.
        alpha: How much agreement counts beside the loss; at least 0.

    Shapes: logits ``[2, B, C]`` or ``[2, B, L, C]`` in training; labels as the wrapped loss takes them.

    Raises:
        ValueError: If alpha is negative or not finite, or the loss cannot be wrapped: it runs the model more than
            once by itself, has several terms, or a weight that does not follow from the labels.

    Source:
        Liang et al. 2021, "R-Drop: Regularized Dropout for Neural Networks", section 2.
    """

    def __init__(self, loss: Loss, alpha: float = 1.0) -> None:
        super().__init__()
        if not 0 <= alpha < float("inf"):
            raise ValueError(f"alpha is {alpha}; it has to be a finite number of at least 0")
        if isinstance(loss, MultiTask):
            raise ValueError("RDrop wraps the loss of one task; inside MultiTask, wrap each term that should have it")
        if loss.passes != 1:
            raise ValueError(f"RDrop runs the model twice and cannot wrap {type(loss).__name__}, which does so itself")
        if loss.deferred:
            raise ValueError(
                f"RDrop weighs each label as the loss does and cannot wrap {type(loss).__name__}, whose weight is only "
                "known with its total"
            )
        self.loss = loss
        self.alpha = alpha

    @property
    def passes(self) -> int:
        """Two in training, one in evaluation."""
        return 2 if self.training else 1

    @property
    def across_rows(self) -> bool:
        """Whether the wrapped loss compares rows."""
        return self.loss.across_rows

    def total(self, logits: Tensor, labels: Tensor, **others: Any) -> Tensor:
        """Returns the mean total of the passes plus alpha times the weighted sum of divergences."""
        offered = {"logits": logits, "labels": labels, **others}
        if not self.training:
            return self.loss(**offered)[0]  # type: ignore[no-any-return]  # a module's call is untyped
        logits = of_one_head(logits, "logits", "RDrop")
        if len(logits) != 2:
            raise ValueError(f"RDrop takes the logits of two passes, [2, B, ...]; got {list(logits.shape)}")
        first, second = (self.loss(**one_pass(offered, index))[0] for index in range(2))
        total: Tensor = (first + second) / 2
        if self.alpha == 0:
            return total
        divergence = self._divergence(logits[0], logits[1], labels)
        return total + self.alpha * (self.label_weights(labels).to(logits.dtype) * divergence).sum()

    def label_weights(self, labels: Tensor) -> Tensor:
        """Returns what each label weighs in the wrapped loss."""
        return self.loss.label_weights(labels)

    def weight(self, labels: Labels) -> Tensor:
        """Returns the weight of the wrapped loss."""
        return self.loss.weight(labels)

    def fit_to_labels(
        self, names: Sequence[str], counts: Sequence[int], *, num_rows: int | None = None, head: str | None = None
    ) -> None:
        """Passes it on to the wrapped loss."""
        self.loss.fit_to_labels(names, counts, num_rows=num_rows, head=head)

    def _divergence(self, first: Tensor, second: Tensor, labels: Tensor) -> Tensor:
        """Returns half the sum of both Kullback-Leibler divergences, of the shape of ``labels``."""
        if isinstance(self.loss, BinaryCrossEntropy):
            first, second = (value_targets(each, labels, "RDrop")[0] for each in (first, second))
            return (first.sigmoid() - second.sigmoid()) * (first - second) / 2
        if labels.is_floating_point():
            raise ValueError(
                f"RDrop compares predicted probabilities, and {type(self.loss).__name__} with float labels has none; "
                "it takes a loss of class numbers, or BinaryCrossEntropy"
            )
        log_p, log_q = (F.log_softmax(class_targets(each, labels, "RDrop")[0], dim=-1) for each in (first, second))
        return ((log_p.exp() - log_q.exp()) * (log_p - log_q)).sum(-1).reshape(labels.shape) / 2

"""Cross-entropy with class weights and label smoothing."""

from collections.abc import Sequence

from torch import Tensor
from torch.nn import functional as F

from lit_trainer.batch import IGNORED_LABEL
from lit_trainer.losses.base import Loss
from lit_trainer.losses.class_weights import ClassWeights, Given
from lit_trainer.losses.targets import class_targets


class CrossEntropy(Loss):
    """Cross-entropy of class numbers; without weights and smoothing, minus the mean log-likelihood.

    Total divided by weight is what ``torch.nn.functional.cross_entropy`` calls the mean: the denominator is the sum
    of the class weights of the rows, or tokens, that count.

    Args:
        class_weights: One weight per class: in the order of the classes, by label name, or ``balanced`` for
            ``n / (C * count)`` of the training rows, as scikit-learn has it.
        label_smoothing: The share of the target, in [0, 1], that is spread evenly over all classes.

    Shapes: logits ``[B, C]`` or ``[B, L, C]``; labels int64 ``[B]`` or ``[B, L]``, -100 where ignored.

    Raises:
        ValueError: If a weight is negative or not finite, or the smoothing is outside [0, 1].

    Source:
        Label smoothing: Szegedy et al. 2016, "Rethinking the Inception Architecture", section 7.
    """

    def __init__(self, class_weights: Given = None, label_smoothing: float = 0.0) -> None:
        super().__init__()
        if not 0 <= label_smoothing <= 1:
            raise ValueError(f"label_smoothing is {label_smoothing}; it has to be in [0, 1]")
        self.class_weights = ClassWeights(class_weights, "class_weights")
        self.label_smoothing = label_smoothing

    def total(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Returns the sum over the labels that count, each times the weight of its class."""
        rows, classes = class_targets(logits, labels, type(self).__name__)
        weights = self.class_weights.for_classes(rows.shape[-1])
        return F.cross_entropy(
            rows,
            classes,
            weight=None if weights is None else weights.to(rows.dtype),
            ignore_index=IGNORED_LABEL,
            reduction="sum",
            label_smoothing=self.label_smoothing,
        )

    def label_weights(self, labels: Tensor) -> Tensor:
        """Returns the weight of each label's class, and 0 where it is ignored."""
        return self.class_weights.of(labels)

    def fit_to_labels(
        self, names: Sequence[str], counts: Sequence[int], *, num_rows: int | None = None, head: str | None = None
    ) -> None:
        """Works out class weights that are balanced or by name."""
        self.class_weights.fit(names, counts, num_rows)

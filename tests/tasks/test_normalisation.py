"""A step's gradient is that of the mean over all its rows, however they are split."""

import pytest
import torch

from lit_trainer.losses.cross_entropy import CrossEntropy
from lit_trainer.losses.function import FunctionLoss
from lit_trainer.losses.multi_task import MultiTask
from lit_trainer.tasks.normalisation import StepNormaliser

ROWS = 32
GENERATOR = torch.Generator().manual_seed(0)
INPUTS = torch.randn(ROWS, 6, generator=GENERATOR, dtype=torch.float64)
LABELS = torch.randint(3, (ROWS,), generator=GENERATOR)
LABELS[::5] = -100
SPLITS = {"1 x 32": [32], "4 x 8": [8] * 4, "short last": [12, 12, 8], "one by one": [1] * 32, "an empty one": [32, 0]}


def top_half(logits, labels):
    """A loss whose weight is known only from the logits: rows that are sure count half."""
    kept = (labels >= 0).double() * (1 - 0.5 * (logits.softmax(-1).amax(-1) > 0.6)).detach()
    values = torch.nn.functional.cross_entropy(logits, labels, reduction="none")
    return (values * kept).sum(), kept.sum()


LOSSES = {
    "class weights": CrossEntropy(class_weights=[1.0, 5.0, 0.2]),
    "smoothed": CrossEntropy(class_weights=[1.0, 5.0, 0.2], label_smoothing=0.1),
    "several terms": MultiTask(
        {"one": CrossEntropy(class_weights=[1.0, 9.0, 1.0]), "two": CrossEntropy()}, {"one": 1.0, "two": 0.3}
    ),
    "known late": FunctionLoss(top_half, returns="total_and_weight"),
}


def gradient(loss, sizes, labels=LABELS):
    torch.manual_seed(0)
    model = torch.nn.Linear(6, 3, dtype=torch.float64)
    normaliser = StepNormaliser(loss, lambda tensor: tensor)
    parts = list(zip(INPUTS.split(sizes), labels.split(sizes), strict=True))
    normaliser.begin([part for _, part in parts])
    for inputs, part in parts:
        normaliser.share(*loss(logits=model(inputs), labels=part)).backward()
    normaliser.correct_gradients(model.parameters())
    return model.weight.grad, normaliser.mean_loss()


@pytest.mark.exact
@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("name", LOSSES)
def test_any_split_has_the_gradient_of_the_whole(name, split):
    whole, whole_loss = gradient(LOSSES[name], [ROWS])
    found, loss = gradient(LOSSES[name], SPLITS[split])
    assert (found - whole).norm() / whole.norm() < 1e-12
    assert float(loss) == pytest.approx(float(whole_loss), rel=1e-12)


def test_the_whole_is_torchs_own_weighted_mean():
    torch.manual_seed(0)
    model = torch.nn.Linear(6, 3, dtype=torch.float64)
    weights = torch.tensor([1.0, 5.0, 0.2], dtype=torch.float64)
    expected = torch.nn.functional.cross_entropy(model(INPUTS), LABELS, weights)
    expected.backward()
    found, loss = gradient(LOSSES["class weights"], [8] * 4)
    assert float(loss) == pytest.approx(expected.item(), rel=1e-7)
    torch.testing.assert_close(found, model.weight.grad, rtol=1e-6, atol=0)


@pytest.mark.parametrize("name", LOSSES)
def test_pytorch_70348_a_step_whose_labels_are_all_ignored_contributes_nothing(name):
    found, loss = gradient(LOSSES[name], [8] * 4, torch.full((ROWS,), -100))
    assert float(loss) == 0
    assert not found.any()

import subprocess
import sys

import pytest
import torch

from lit_trainer.losses.gathered_rows import gather_rows

from . import two_ranks

TIMEOUT_SECONDS = 100


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """What two processes find, each with its part of the rows."""
    folder = tmp_path_factory.mktemp("ranks")
    files = [folder / f"{rank}.pt" for rank in range(2)]
    processes = [
        subprocess.Popen(
            [sys.executable, two_ranks.__file__, str(rank), str(folder / "meeting"), str(file)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank, file in enumerate(files)
    ]
    try:
        outputs = [process.communicate(timeout=TIMEOUT_SECONDS)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert [process.returncode for process in processes] == [0, 0], "\n".join(outputs)
    return [torch.load(file, weights_only=True) for file in files]


@pytest.mark.exact
@pytest.mark.parametrize("name", two_ranks.losses())
@pytest.mark.parametrize("case", two_ranks.FIRST_RANK)
def test_two_ranks_have_the_loss_and_the_gradient_of_one_process(ranks, case, name):
    whole = two_ranks.run(case, name, slice(None), 1)
    first, second = (rank[case, name] for rank in ranks)
    for key in ("total", "weight"):
        torch.testing.assert_close(first[key] + second[key], whole[key], rtol=1e-12, atol=1e-12)
    assert whole["gradient"].any()
    for rank in (first, second):
        torch.testing.assert_close(rank["gradient"], whole["gradient"], rtol=1e-12, atol=1e-12)


def test_one_process_gathers_what_it_has():
    features, labels = torch.randn(3, 2, requires_grad=True), torch.arange(3)
    (all_features, all_labels), start = gather_rows(features, labels)
    assert all_features is features
    assert all_labels is labels
    assert start == 0

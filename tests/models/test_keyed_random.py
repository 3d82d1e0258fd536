import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lit_trainer.models.keyed_random import fold, keyed_uniform, mix, odd_words, row_keys, stream_key

_INT64 = st.integers(-(2**63), 2**63 - 1)


def _splitmix(z: int) -> int:
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) % 2**64
    return z ^ (z >> 31)


@given(st.lists(_INT64, min_size=1))
def test_mix_is_splitmix(values: list[int]) -> None:
    assert [x % 2**64 for x in mix(torch.tensor(values)).tolist()] == [_splitmix(x % 2**64) for x in values]


@given(_INT64, st.integers(0, 63))
def test_mix_flips_about_half_the_bits(value: int, bit: int) -> None:
    flipped = value ^ (1 << bit if bit < 63 else -(2**63))
    changed = (mix(torch.tensor(value)) ^ mix(torch.tensor(flipped))).item() % 2**64
    assert 8 <= changed.bit_count() <= 56


@given(_INT64, _INT64, _INT64)
def test_fold_tells_data_and_order_apart(key: int, a: int, b: int) -> None:
    start = torch.tensor(key)
    assert torch.equal(fold(start, torch.tensor(a)), fold(start, torch.tensor(a)))
    if a != b:
        assert fold(start, torch.tensor(a)) != fold(start, torch.tensor(b))
        assert fold(fold(start, torch.tensor(a)), torch.tensor(b)) != fold(
            fold(start, torch.tensor(b)), torch.tensor(a)
        )


def test_row_keys_differ_by_each_argument() -> None:
    draws = torch.arange(1000)
    keys = torch.cat(
        [
            row_keys(seed, epoch, draws, pass_index)
            for seed in (-1, 0, 2**40)
            for epoch in range(3)
            for pass_index in range(2)
        ]
    )
    assert keys.unique().numel() == 3 * 3 * 2 * 1000


def test_a_row_has_the_same_key_in_any_batch() -> None:
    draws = torch.arange(10)
    assert torch.equal(row_keys(3, 1, draws)[4:7], row_keys(3, 1, draws[4:7]))
    assert row_keys(3, 1, torch.tensor([4, 4]))[0] == row_keys(3, 1, torch.tensor([4]))[0]


def test_odd_words_are_odd_and_cover_int32() -> None:
    words = odd_words(torch.arange(100_000))
    assert words.dtype == torch.int32
    assert bool((words & 1).all())
    assert words.min() < -2.1e9
    assert words.max() > 2.1e9
    assert abs(words.double().mean()) < 5 * 2**32 / 12**0.5 / 100_000**0.5


@pytest.mark.parametrize("shift", [(1, 0), (0, 1)])
def test_uniform_numbers_are_uniform_and_independent(shift: tuple[int, int]) -> None:
    x = keyed_uniform(1, 0, torch.arange(500)[:, None], torch.arange(400), "masking").double()
    assert x.min() >= 0
    assert x.max() < 1
    counts = torch.histc(x, 100, 0, 1)
    assert ((counts - 2000) ** 2 / 2000).sum() < 99 + 5 * (2 * 99) ** 0.5
    centred = (x - 0.5) * 12**0.5
    neighbour = centred.roll(shift, (0, 1))
    assert abs((centred * neighbour).sum()) / x.numel() ** 0.5 < 5


def test_uniform_numbers_differ_by_stream_epoch_and_seed_and_not_by_split() -> None:
    draws, positions = torch.arange(100)[:, None], torch.arange(50)
    x = keyed_uniform(1, 0, draws, positions, "masking")
    assert torch.equal(x[30:40, :20], keyed_uniform(1, 0, draws[30:40], positions[:20], "masking"))
    for other in (
        keyed_uniform(1, 0, draws, positions, "replacing"),
        keyed_uniform(1, 1, draws, positions, "masking"),
        keyed_uniform(2, 0, draws, positions, "masking"),
    ):
        assert abs(torch.corrcoef(torch.stack([x.flatten(), other.flatten()]))[0, 1]) < 5 / x.numel() ** 0.5


def test_stream_keys_do_not_depend_on_the_process() -> None:
    assert stream_key("encoder.layer.0") == 1893245239984491706

"""A slow rank is named, whether it is slow itself or slow to reach."""

import time

import pytest
import torch
import torch.distributed as dist

from lit_trainer.preflight.collectives import GPUsNotMetError, slow_ranks, time_by_nccl
from lit_trainer.preflight.launch import Launch
from tests.preflight.told import kinds, texts

HOSTS = {rank: f"n{rank}" for rank in range(4)}


def times(**changed: tuple[int, float]) -> list[dict[str, float]]:
    everybody = [{"all_reduce": 1.0, "work": 2.0, "way": 0.0 if rank == 0 else 0.5} for rank in range(4)]
    for name, (rank, value) in changed.items():
        everybody[rank][name] = value
    return everybody


def test_ranks_that_are_alike_are_fine() -> None:
    (finding,) = slow_ranks(times(), HOSTS)
    assert (finding.kind, finding.text) == ("ok", "4 ranks meet; an all-reduce of 4 KiB takes 1.0 ms by gloo")
    assert kinds(slow_ranks(times()[:2], HOSTS)) == ["ok"]


def test_a_busy_rank_is_named() -> None:
    assert texts(slow_ranks(times(work=(2, 30.0)), HOSTS), "look") == [
        "rank 2 on n2 is slow: 30 ms for what takes 2.0 ms elsewhere, and all wait for it: is something else running"
        " there?"
    ]


def test_a_rank_that_is_slow_to_reach_is_named() -> None:
    far = texts(slow_ranks(times(way=(3, 40.0), all_reduce=(0, 90.0)), HOSTS), "look")
    assert (
        far[0] == "4 ranks meet; an all-reduce of 4 KiB takes 90 ms by gloo, where less than 50 ms are to be expected"
    )
    assert far[1].startswith("rank 3 on n3 is slow to reach: 40 ms to rank 0 and back, 0.5 ms from elsewhere")


def test_where_all_are_slow_to_reach_it_is_the_first() -> None:
    everybody = [{**each, "way": 80.0 if rank else 0.0} for rank, each in enumerate(times())]
    assert texts(slow_ranks(everybody, HOSTS), "look")[0].startswith("rank 0 on n0 is slow to reach")


def test_of_two_ranks_the_other_one_is_named() -> None:
    two = [{"all_reduce": 200.0, "work": 2.0, "way": 0.0}, {"all_reduce": 200.0, "work": 2.0, "way": 90.0}]
    (text,) = texts(slow_ranks(two, HOSTS), "look")
    assert "rank 1 on n1 is the slowest to reach: is it another network than that between the nodes" in text


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """GPUs in name only."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)


def test_gpus_that_wait_for_one_another_are_given_up_in_time(gpus: None, monkeypatch) -> None:
    monkeypatch.setattr(dist, "init_process_group", lambda *_, **__: time.sleep(3))
    with pytest.raises(
        GPUsNotMetError, match=r"the GPUs of 2 ranks did not meet by NCCL within 0.1 s: NCCL_DEBUG=INFO"
    ):
        time_by_nccl(Launch(0, 0, 2, 2, "n1", 1), dist.HashStore(), 0.1)


def test_what_nccl_refuses_is_said(gpus: None, monkeypatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("Duplicate GPU\n detected")

    monkeypatch.setattr(dist, "init_process_group", refuse)
    with pytest.raises(GPUsNotMetError, match=r"^NCCL: Duplicate GPU detected: NCCL_DEBUG=INFO says more"):
        time_by_nccl(Launch(0, 0, 2, 2, "n1", 1), dist.HashStore(), 5)

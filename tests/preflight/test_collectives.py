"""A slow rank is named, whether it is slow itself or slow to reach."""

from lit_trainer.preflight.collectives import slow_ranks
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

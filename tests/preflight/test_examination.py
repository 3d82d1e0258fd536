"""What is wrong on any rank keeps all from training, and is told once."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from lit_trainer.preflight import examination
from lit_trainer.preflight.examination import ToldByRankZeroError, among_ranks
from lit_trainer.preflight.findings import Finding
from lit_trainer.preflight.intended_run import IntendedRun
from lit_trainer.preflight.launch import Launch
from lit_trainer.preflight.meeting import NotMetError
from tests.preflight.told import kinds, only, texts

FIRST, SECOND = (Launch(rank, 0, 2, 2, "n1", 1234) for rank in range(2))


@pytest.fixture
def other(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the second rank reports to the first."""
    monkeypatch.setattr(examination, "content_of_node", lambda _: {"package": {"torch": "2.13"}})
    report = {"host": "n2", "wrong": [], "content": {"package": {"torch": "2.13"}}}
    told: dict[str, Any] = {}

    def meet(launch: Launch, mine: Any, judge: Any, seconds: float) -> Mapping[str, Any]:
        told.update(judge({0: mine, 1: report}, []))
        return told

    monkeypatch.setattr(examination, "meet", meet)
    report["told"] = told
    return report


def test_what_another_machine_lacks_is_told_by_the_first(other: dict[str, Any]) -> None:
    other["wrong"] = ["nothing can be written in /x"]
    assert only(among_ranks(IntendedRun(), 1, [], FIRST)) == (
        "wrong", "n2 (rank 1): nothing can be written in /x"
    )  # fmt: skip
    assert other["told"] == {"wrong": True}


def test_what_the_first_lacks_keeps_the_others_from_training_and_is_not_said_twice(other: dict[str, Any]) -> None:
    assert not list(among_ranks(IntendedRun(), 1, [Finding("wrong", "no: do this")], FIRST))
    assert other["told"] == {"wrong": True}


def test_what_differs_is_told_with_the_names_of_nodes(other: dict[str, Any]) -> None:
    other["content"] = {"package": {"torch": "2.12"}}
    (finding,) = among_ranks(IntendedRun(), 1, [], FIRST)
    assert finding.text.startswith("package: torch is 2.12 on n2 (rank 1), 2.13 on ")


def test_a_node_with_a_file_system_of_its_own_is_worth_a_look(other: dict[str, Any], monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(examination.collectives, "new_store", lambda *_: SimpleNamespace(port=1))
    monkeypatch.setattr(
        examination.collectives, "time_by_gloo", lambda *_: [{"all_reduce": 0, "work": 0, "way": 0}] * 2
    )
    (tmp_path / "seen").touch()
    other["marker"] = str(tmp_path / "seen")
    assert kinds(among_ranks(IntendedRun(tmp_path / "runs"), 1, [], FIRST)) == ["ok", "ok"]
    other["marker"] = str(tmp_path / "unseen")
    looks = texts(among_ranks(IntendedRun(tmp_path / "runs"), 1, [], FIRST), "look")
    assert looks[0].startswith("n2 and ")
    assert f"do not see the same files in {tmp_path / 'runs'}: a run could not go on" in looks[0]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["seen"], "nothing is left behind"


def test_the_others_leave_it_to_the_first_to_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examination, "meet", lambda *_: {"wrong": True})
    with pytest.raises(ToldByRankZeroError):
        list(among_ranks(IntendedRun(), 1, [], SECOND))


def test_a_rank_that_met_nobody_tells_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise NotMetError("rank 1 could not meet rank 0")

    monkeypatch.setattr(examination, "meet", fail)
    assert only(among_ranks(IntendedRun(), 1, [], SECOND)) == ("wrong", "rank 1 could not meet rank 0")


def test_one_process_alone_meets_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "SLURM_STEP_ID"):
        monkeypatch.delenv(name, raising=False)
    assert not list(among_ranks(IntendedRun(), 1, []))

"""A command of several ranks that could not train ends before it begins; one process alone is let pass."""

import logging

import pytest

from lit_trainer.preflight import before_training
from lit_trainer.preflight.before_training import PreflightError, check_job, check_ranks, has_several_ranks
from lit_trainer.preflight.examination import ToldByRankZeroError
from lit_trainer.preflight.findings import Finding
from lit_trainer.preflight.intended_run import IntendedRun
from lit_trainer.preflight.launch import Launch

RUN = IntendedRun(devices=1, num_nodes=2, uses_gpus=False)


def found(monkeypatch: pytest.MonkeyPatch, rank: int, local_rank: int, here: list[Finding], ranks: object) -> None:
    """Has a rank find this on its machine, and this among the ranks."""
    launch = Launch(rank, local_rank, 2, 2, "n1", 1)
    monkeypatch.setattr(before_training, "find_launch", lambda _: launch)
    monkeypatch.setattr(before_training, "on_machine", lambda *_, **__: iter(here))
    monkeypatch.setattr(before_training, "among_ranks", ranks)
    monkeypatch.setattr(before_training, "SECONDS_TO_TELL", 0)


def test_one_thing_that_is_wrong_is_one_line(monkeypatch) -> None:
    found(monkeypatch, 0, 0, [Finding("wrong", "no: do this")], lambda *_: iter([]))
    with pytest.raises(PreflightError, match=r"^pre-flight: no: do this$"):
        check_ranks(RUN, 1)


def test_several_are_a_line_each(monkeypatch) -> None:
    found(monkeypatch, 0, 0, [Finding("wrong", "a")], lambda *_: iter([Finding("ok", "b"), Finding("wrong", "c")]))
    with pytest.raises(PreflightError, match=r"^this keeps ranks from training:\n- a\n- c$"):
        check_ranks(RUN, 1)


def test_what_rank_zero_tells_the_others_do_not_repeat(monkeypatch) -> None:
    def elsewhere(*_: object) -> None:
        raise ToldByRankZeroError

    found(monkeypatch, 1, 0, [Finding("wrong", "a")], elsewhere)
    with pytest.raises(SystemExit) as end:
        check_ranks(RUN, 1)
    assert end.value.code == 2


def test_one_rank_looks_at_each_machine(monkeypatch) -> None:
    found(monkeypatch, 1, 1, [Finding("wrong", "a")], lambda *_: iter([]))
    check_ranks(RUN, 1)


def test_what_is_worth_a_look_is_a_warning_and_that_all_is_well_one_line(monkeypatch, caplog) -> None:
    caplog.set_level(logging.INFO)
    among = [Finding("ok", "2 ranks meet"), Finding("ok", "all nodes have the same")]
    found(monkeypatch, 0, 0, [Finding("ok", "space"), Finding("look", "few cores")], lambda *_: iter(among))
    check_ranks(RUN, 1)
    assert caplog.messages == ["pre-flight: few cores", "Pre-flight: 2 ranks meet; all nodes have the same"]


def test_a_job_without_srun_is_refused(monkeypatch) -> None:
    for name, value in {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "2", "SLURM_NTASKS_PER_NODE": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("SLURM_NNODES", "2")
    monkeypatch.setattr("shutil.which", lambda name: name)
    with pytest.raises(PreflightError, match="2 tasks but no srun"):
        check_job(RUN)


def test_only_several_ranks_are_looked_at(monkeypatch) -> None:
    for name in ("LOCAL_RANK", "RANK", "WORLD_SIZE", "SLURM_STEP_ID"):
        monkeypatch.delenv(name, raising=False)
    assert not has_several_ranks(IntendedRun())
    assert not has_several_ranks(IntendedRun(devices=1, num_nodes=1))
    assert has_several_ranks(IntendedRun(devices=2))
    assert has_several_ranks(RUN)
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert not has_several_ranks(IntendedRun(devices=2)), "Lightning has started it, and what started it has looked"

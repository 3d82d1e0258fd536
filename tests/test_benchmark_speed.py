"""The benchmark of speed runs in its quick form, and a system that fails costs its own row only."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def run(out: Path, *arguments: str) -> tuple[dict, str, str]:
    command = [sys.executable, "benchmarks/speed.py", "--quick", "--threads", "1", "--out", str(out), *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads((out / "speed.json").read_text()), (out / "speed.md").read_text(), done.stdout


@pytest.mark.slow
def test_the_quick_form_measures_and_shows_every_system(tmp_path):
    figures, text, printed = run(tmp_path, "--only", "training", "--only", "small")
    assert "failed" not in figures
    systems = [*figures["training"], *figures["small"]]
    assert len(systems) == 6
    for system in systems:
        assert not system["failure"]
        assert len(system["rounds"]) == 2
        assert all(each["tokens"] > 0 and each["seconds"] > 0 for each in system["rounds"])
        assert system["system"] in text
        assert system["system"] in printed
    tokens = {system["rounds"][0]["tokens"] + system["rounds"][1]["tokens"] for system in figures["training"]}
    assert len(figures["training"][0]["evaluations"]) == 2
    evaluated = {system["evaluations"][-1]["tokens"] for system in figures["training"]}
    assert len(evaluated) == 1, "all evaluate the same rows"
    assert all(count > 0 for count in tokens)
    assert "at least 6" in text
    assert (tmp_path / "speed.png").stat().st_size > 10_000


def test_ratios_are_those_of_the_same_round_and_failures_are_told(tmp_path):
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        from speed_figures import Range, added, ratio
        from speed_processes import Measured
    finally:
        sys.path.pop(0)

    def system(rates, milliseconds):
        rounds = [
            {"tokens": rate, "seconds": 1.0, "step_seconds": [m / 1e3] * 3}
            for rate, m in zip(rates, milliseconds, strict=True)
        ]
        return {"system": "any", "rounds": rounds}

    one, other = system([40, 10, 30], [5, 9, 7]), system([10, 5, 20], [4, 6, 5])
    assert ratio(one, other) == Range(2, 1.5, 4)
    more = added(one, other)
    assert more is not None
    assert round(more.middle, 6) == 1.2  # 10th percentiles of 5, 9, 7 and of 4, 6, 5
    assert 1 <= more.low <= more.middle <= more.high <= 4
    assert ratio(one, None) is None
    broken = Measured("broken", ["-c", "raise SystemExit('it broke')"])
    broken.launch(tmp_path)
    broken.wait_until_ready(60)
    assert broken.failure == "it broke"
    assert broken.train(3, 60) == {}
    slow = Measured("slow", ["-c", "import time; time.sleep(60)"])
    slow.launch(tmp_path)
    slow.wait_until_ready(0.2)
    assert slow.failure == "took more than 0 s"

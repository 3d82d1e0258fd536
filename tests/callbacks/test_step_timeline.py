"""Phases are added up on the host's clock, and on a device's without waiting for it in between."""

import pytest

from lit_trainer.callbacks.step_timeline import BACKWARD, DATA, FORWARD, OPTIMIZER, PHASES, CudaTimeline, HostTimeline


class Device:
    """A device that works through what it is asked, later than the host asks."""

    def __init__(self) -> None:
        self.milliseconds = 0.0
        self.reached = True
        self.num_waits = 0
        self.num_events = 0

    def make_event(self) -> "Event":
        self.num_events += 1
        return Event(self)


class Event:
    def __init__(self, device: Device) -> None:
        self.device = device
        self.at = 0.0

    def record(self) -> None:
        self.at = self.device.milliseconds

    def query(self) -> bool:
        return self.device.reached

    def synchronize(self) -> None:
        self.device.num_waits += 1

    def elapsed_time(self, other: "Event") -> float:
        return other.at - self.at


def test_the_host_adds_up_and_begins_anew() -> None:
    now = 0.0
    timeline = HostTimeline(lambda: now)
    for phase, seconds in ((DATA, 1.0), (FORWARD, 2.0), (DATA, 4.0)):
        now += seconds
        timeline.mark(phase)
    now += 100
    timeline.restart()
    now += 3
    timeline.mark(BACKWARD)
    assert timeline.read() == {**dict.fromkeys(PHASES, 0.0), "data": 5.0, "forward": 2.0, "backward": 3.0}
    assert timeline.read() == dict.fromkeys(PHASES, 0.0)


def test_the_device_is_waited_for_once_a_reading_and_its_events_are_used_again() -> None:
    device = Device()
    timeline = CudaTimeline(device.make_event)
    for _ in range(3):
        for _ in range(10):
            for phase, milliseconds in ((DATA, 1.0), (FORWARD, 2.0), (BACKWARD, 4.0), (OPTIMIZER, 3.0)):
                device.milliseconds += milliseconds
                timeline.mark(phase)
            device.milliseconds += 500
            timeline.restart()
        found = timeline.read()
        assert found == pytest.approx({"data": 0.01, "forward": 0.02, "backward": 0.04, "optimizer": 0.03, "rest": 0.0})
    assert device.num_waits == 3
    assert device.num_events <= 52


def test_a_device_that_has_caught_up_with_the_host_is_idle() -> None:
    device = Device()
    timeline = CudaTimeline(device.make_event)
    for reached in (True, False, True):
        device.reached = reached
        timeline.mark(BACKWARD)
        timeline.mark(OPTIMIZER)
    assert timeline.num_idle == 2

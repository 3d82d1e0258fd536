"""Ranks meet within seconds or say why not, and leave the port to training."""

import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from lit_trainer.preflight import meeting
from lit_trainer.preflight.launch import Launch
from lit_trainer.preflight.meeting import NotMetError, meet


@pytest.fixture
def port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return int(server.getsockname()[1])


def all_told(reports: Any, away: list[int]) -> dict[str, Any]:
    return {"ranks": sorted(reports), "away": away, "sum": sum(report["number"] for report in reports.values())}


def launch(rank: int, size: int, port: int, name: str = "job", address: str = "127.0.0.1") -> Launch:
    return Launch(rank, rank, size, 1, address, port, name)


def together(ranks: list[Callable[[], Any]]) -> list[Any]:
    """Runs each in a thread of its own, and returns what they return or raise."""
    results: list[Any] = [None] * len(ranks)

    def run(index: int) -> None:
        try:
            results[index] = ranks[index]()
        except Exception as error:
            results[index] = error

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(ranks))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return results


def test_all_are_told_what_the_first_makes_of_all_reports(port: int) -> None:
    def rank(number: int) -> Callable[[], Any]:
        return lambda: meet(launch(number, 5, port), {"number": number}, all_told, 20)

    assert together([rank(number) for number in range(5)]) == [{"ranks": [0, 1, 2, 3, 4], "away": [], "sum": 10}] * 5
    with socket.create_server(("", port)):
        pass  # free at once for those who meet there next


def test_the_port_is_free_before_any_rank_goes_on(port: int) -> None:
    def other() -> None:
        meet(launch(1, 2, port), {"number": 1}, all_told, 20)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), timeout=5)

    def first() -> None:
        meet(launch(0, 2, port), {"number": 0}, all_told, 20)

    assert together([first, other]) == [None, None]


def test_who_stays_away_is_told_to_those_who_came(port: int) -> None:
    begun = time.monotonic()
    came = [lambda: meet(launch(0, 3, port), {"number": 0}, all_told, 2)]
    came.append(lambda: meet(launch(2, 3, port), {"number": 2}, all_told, 2))
    assert together(came) == [{"ranks": [0, 2], "away": [1], "sum": 2}] * 2
    assert time.monotonic() - begun < 10


def test_a_rank_alone_says_that_nobody_listens(port: int) -> None:
    with pytest.raises(NotMetError, match=rf"rank 1 could not meet rank 0 at 127.0.0.1:{port} within 0.5 s \(nobody"):
        meet(launch(1, 2, port), {"number": 1}, all_told, 0.5)


def test_an_address_without_an_answer_is_a_mistake_in_the_network(port: int) -> None:
    with pytest.raises(NotMetError, match="MASTER_ADDR"):
        meet(launch(1, 2, port, address="no.such.host.invalid"), {"number": 1}, all_told, 0.5)


def test_a_port_in_use_is_told_by_the_first(port: int) -> None:
    with socket.create_server(("", port)), pytest.raises(NotMetError, match=f"MASTER_PORT {port} cannot be used"):
        meet(launch(0, 2, port), {"number": 0}, all_told, 5)


def test_two_jobs_on_one_port_are_kept_apart(port: int) -> None:
    mine, stranger, mine_too = together(
        [
            lambda: meet(launch(0, 2, port, "one"), {"number": 0}, all_told, 20),
            lambda: meet(launch(1, 2, port, "two"), {"number": 9}, all_told, 20),
            lambda: time.sleep(1) or meet(launch(1, 2, port, "one"), {"number": 1}, all_told, 20),
        ]
    )
    assert mine == mine_too == {"ranks": [0, 1], "away": [], "sum": 1}
    assert str(stranger) == f"127.0.0.1:{port} belongs to one: set MASTER_PORT to another port"


@pytest.mark.parametrize("answer", [b"220 mail\n", b"", None])
def test_what_listens_there_may_be_something_else(port: int, answer: bytes | None, monkeypatch) -> None:
    monkeypatch.setattr(meeting, "_SECONDS_TO_HEAR", 0.5)
    with socket.create_server(("127.0.0.1", port)) as server:

        def serve() -> None:
            with server.accept()[0] as visitor:
                visitor.recv(100)
                time.sleep(2 if answer is None else 0)
                visitor.sendall(answer or b"")

        def visit() -> None:
            meet(launch(1, 2, port), {"number": 1}, all_told, 1)

        begun = time.monotonic()
        _, error = together([serve, visit])
    assert "(what answers there is not rank 0 of this training; set MASTER_PORT to another port)" in str(error)
    assert time.monotonic() - begun < 10


def test_noise_on_the_port_is_no_rank(port: int) -> None:
    def noise() -> None:
        time.sleep(0.3)
        for said in (b"", b"GET / HTTP/1.1\n", b"[1]\n", b'{"name": "job", "rank": "x"}\n'):
            with socket.create_connection(("127.0.0.1", port), timeout=5) as visitor:
                visitor.sendall(said)

    def rank(number: int, seconds: float) -> Callable[[], Any]:
        return lambda: time.sleep(seconds) or meet(launch(number, 2, port), {"number": number}, all_told, 20)

    first, second, _ = together([rank(0, 0), rank(1, 1), noise])
    assert first == second == {"ranks": [0, 1], "away": [], "sum": 1}

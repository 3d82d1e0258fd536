"""Addresses, ports and interfaces by which nodes could not meet are told."""

import socket

import pytest

from lit_trainer.preflight import network
from lit_trainer.preflight.network import interfaces, meeting_place
from tests.preflight.told import kinds, only, texts

TWO = {"NNODES": "2"}


def test_an_address_that_nobody_knows_is_wrong() -> None:
    kind, text = only(meeting_place({"MASTER_ADDR": "no.such.host.invalid"}))
    assert kind == "wrong"
    assert text.startswith("MASTER_ADDR no.such.host.invalid has no address here")


def test_an_address_that_means_another_machine_on_each_is_worth_a_look(monkeypatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "n1")
    monkeypatch.setattr(socket, "gethostbyname", lambda name: "127.0.1.1")
    first, second = meeting_place({"MASTER_ADDR": "n1", "SLURM_NNODES": "2"})
    assert first.kind == "look"
    assert first.text.startswith("MASTER_ADDR n1 is 127.0.1.1 on its own node, where no other node can reach it")
    assert second.kind == "ok"


def test_a_port_in_use_is_wrong_but_not_where_torchrun_uses_it() -> None:
    with socket.socket() as server:
        server.bind(("", 0))
        server.listen()
        port = server.getsockname()[1]
        variables = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        kind, text = only(meeting_place(variables))
        assert kinds(meeting_place({**variables, "TORCHELASTIC_USE_AGENT_STORE": "True"})) == ["ok"]
        assert kinds(meeting_place({**variables, "RANK": "1"})) == ["ok"]
    assert kind == "wrong"
    assert text.startswith(f"MASTER_PORT {port} cannot be used")


@pytest.mark.parametrize("port", ["-1", "65536", "http"])
def test_a_port_that_is_none_is_wrong(port: str) -> None:
    assert only(meeting_place({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}))[0] == "wrong"


def test_a_list_of_nodes_that_lightning_reads_otherwise_is_wrong(monkeypatch) -> None:
    monkeypatch.setattr(network, "first_host", lambda nodes: "rack1node1")
    monkeypatch.setattr(socket, "gethostbyname", lambda name: "10.0.0.1")
    (wrong,) = texts(meeting_place({"SLURM_NODELIST": "rack[1-2]node[1-2]", "SLURM_NNODES": "4"}), "wrong")
    assert wrong.startswith("Lightning takes rack1 for the first of rack[1-2]node[1-2], which is rack1node1: put")


@pytest.fixture
def two_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "if_nameindex", lambda: [(1, "lo"), (2, "eth0"), (3, "ib0"), (4, "docker0")])


@pytest.mark.usefixtures("two_networks")
class TestInterfaces:
    def test_one_node_needs_none(self) -> None:
        assert not kinds(interfaces({}))

    def test_several_networks_between_nodes_are_worth_a_look_until_one_is_named(self) -> None:
        kind, text = only(interfaces(TWO))
        assert (kind, text.partition(":")[0]) == ("look", "this machine is on eth0, ib0")
        assert not kinds(interfaces({**TWO, "NCCL_SOCKET_IFNAME": "ib", "GLOO_SOCKET_IFNAME": "ib0"}))

    @pytest.mark.parametrize(
        ("variable", "value"),
        [("GLOO_SOCKET_IFNAME", "ib"), ("NCCL_SOCKET_IFNAME", "=ib"), ("NCCL_SOCKET_IFNAME", "eno")],
    )
    def test_an_interface_that_is_not_there_is_wrong(self, variable: str, value: str) -> None:
        assert only(interfaces({variable: value})) == (
            "wrong", f"{variable} is {value} but this machine has lo, eth0, ib0, docker0: name one of these, the same"
            " network on all nodes (ip -br address)",
        )  # fmt: skip

    @pytest.mark.parametrize("value", ["ib", "=ib0", "^docker0,lo", "eno,eth"])
    def test_nccl_takes_beginnings_and_exceptions(self, value: str) -> None:
        assert not kinds(interfaces({"NCCL_SOCKET_IFNAME": value}))

    def test_one_variable_without_the_other_is_worth_a_look(self) -> None:
        given = {**TWO, "NCCL_SOCKET_IFNAME": "ib0"}
        assert only(interfaces(given)) == (
            "look", "NCCL_SOCKET_IFNAME is ib0 but GLOO_SOCKET_IFNAME is not set: training uses both NCCL and gloo;"
            " set GLOO_SOCKET_IFNAME as well",
        )  # fmt: skip
        assert not kinds(interfaces({**TWO, "GLOO_SOCKET_IFNAME": "ib0"}, uses_gpus=False)), "no NCCL on CPUs"

    def test_the_loopback_reaches_no_other_node(self) -> None:
        both = {"NCCL_SOCKET_IFNAME": "lo", "GLOO_SOCKET_IFNAME": "lo"}
        assert kinds(interfaces({**TWO, **both})) == ["look", "look"]
        assert not kinds(interfaces(both))

    def test_what_slows_down_or_has_another_name_is_worth_a_look(self, monkeypatch) -> None:
        monkeypatch.setattr(network, "has_infiniband", lambda: False)
        given = {"NCCL_P2P_DISABLE": "1", "NCCL_IB_DISABLE": "1", "NCCL_BLOCKING_WAIT": "0"}
        slow, renamed = texts(interfaces(given), "look")
        assert slow.startswith("NCCL_P2P_DISABLE is 1: the GPUs of a node reach one another by its memory")
        assert renamed == "NCCL_BLOCKING_WAIT is called TORCH_NCCL_BLOCKING_WAIT now: rename it"
        monkeypatch.setattr(network, "has_infiniband", lambda: True)
        assert len(kinds(interfaces(given))) == 3

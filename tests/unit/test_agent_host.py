"""What an agent finds out about its host: memory, addresses, ports, checkpoint places, settings."""

from __future__ import annotations

import os
import pwd
import socket
from pathlib import Path

import pytest

from arena.errors import AlreadyRunningError, UserError
from arena_agent.accounts import job_account
from arena_agent.config import AgentConfig
from arena_agent.files import create_durably, write_durably
from arena_agent.lock import directory_lock
from arena_agent.memory import memory_limit_bytes, oom_kill_count
from arena_agent.network import interface_environment, interface_of, own_address, port_problem
from arena_agent.places import MARKER, visible_places
from arena_agent.shim.linux import environment_address, overwrite_environment

INTERFACES = {"eth0": ("10.0.0.5", "fe80::1"), "lo": ("127.0.0.1", "::1")}


def cgroup(directory: Path, membership: str, files: dict[str, str]) -> dict[str, Path]:
    for name, text in files.items():
        path = directory / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (directory / "self").write_text(membership)
    return {"root": directory / "cgroup", "membership": directory / "self"}


@pytest.mark.parametrize(
    ("membership", "files"),
    [
        ("0::/a/b\n", {"a/memory.max": "536870912\n", "a/b/memory.max": "max\n"}),
        ("4:memory:/a\n0::/\n", {"memory/a/memory.limit_in_bytes": "536870912\n"}),
        ("4:memory:/a/b\n", {"memory/a/memory.limit_in_bytes": "536870912\n"}),
    ],
)
def test_memory_is_the_smallest_limit_up_the_tree(tmp_path, membership, files):
    assert memory_limit_bytes(**cgroup(tmp_path, membership, files)) == 512 << 20


def test_memory_without_a_limit_is_the_hosts(tmp_path):
    host = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    unlimited = {"memory/memory.limit_in_bytes": "9223372036854771712\n"}
    assert memory_limit_bytes(**cgroup(tmp_path, "4:memory:/\n", unlimited)) == host


def test_kills_for_memory_are_counted(tmp_path):
    events = {"a/memory.events": "low 0\noom 3\noom_kill 2\n"}
    assert oom_kill_count(**cgroup(tmp_path, "0::/a\n", events)) == 2
    assert oom_kill_count(root=tmp_path / "none", membership=tmp_path / "none") == 0


@pytest.mark.parametrize(
    ("address", "interface"),
    [("10.0.0.5", "eth0"), ("127.0.0.1", "lo"), ("127.0.1.1", "lo"), ("10.0.0.6", None), ("a-name", None)],
)
def test_the_interface_is_the_one_that_holds_the_address(address, interface):
    assert interface_of(address, INTERFACES) == interface
    expected = {"GLOO_SOCKET_IFNAME": interface} if interface else {}
    assert interface_environment(address, {}, INTERFACES) == expected


def test_the_users_interface_wins_and_must_exist():
    assert interface_environment("10.0.0.5", {"GLOO_SOCKET_IFNAME": "lo"}, INTERFACES) == {}
    with pytest.raises(UserError, match=r"'\^lo', which this node does not have: it has eth0, lo"):
        interface_environment("10.0.0.5", {"GLOO_SOCKET_IFNAME": "^lo,docker"}, INTERFACES)


def test_a_loopback_scheduler_is_reached_from_loopback():
    assert own_address("127.0.0.1", 5000) == "127.0.0.1"
    assert own_address("localhost", 5000) in {"127.0.0.1", "::1"}


def test_a_port_in_use_is_told_from_a_free_one():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen(1)
        port = taken.getsockname()[1]
        assert port_problem("127.0.0.1", port) == f"port {port} of 127.0.0.1: Address already in use"
    assert port_problem("127.0.0.1", port) is None


def test_two_nodes_that_see_a_place_read_the_same_marker(tmp_path):
    first = visible_places([tmp_path / "new" / "place"])
    second = visible_places([tmp_path / "new" / "place"])
    assert first == second
    assert [path.name for path in (tmp_path / "new" / "place").iterdir()] == [MARKER]
    assert visible_places([tmp_path / "other"]) != first


def test_a_place_that_cannot_be_written_is_left_out_with_a_warning(tmp_path, caplog):
    (tmp_path / "file").touch()
    assert visible_places([tmp_path / "file" / "below"]) == {}
    assert "left out" in caplog.text


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"node_id": "a/b"}, "node id 'a/b'"),
        ({"node_id": ""}, "node id ''"),
        ({"virtual_gpus": 0}, "0 virtual GPUs"),
        ({"port_low": 30_000, "port_high": 20_000}, "port range 30000-20000"),
        ({"scheduler": "nowhere"}, "is not host:port"),
    ],
)
def test_settings_that_cannot_work_are_refused(tmp_path, fields, word):
    values = {"node_id": "n", "scheduler": "127.0.0.1:1", "state_dir": tmp_path, **fields}
    with pytest.raises(UserError, match=word):
        AgentConfig(**values)


def test_settings_do_not_show_the_token(tmp_path):
    config = AgentConfig(node_id="n", scheduler="h:1", state_dir=tmp_path, token="secret")
    assert "secret" not in repr(config)


def test_a_directory_is_held_by_one_agent(tmp_path):
    with directory_lock(tmp_path / "lock"):
        second = directory_lock(tmp_path / "lock")
        with pytest.raises(AlreadyRunningError, match=f"process {os.getpid()} holds it"):
            second.__enter__()
    with directory_lock(tmp_path / "lock"):
        pass


def test_files_are_made_once_and_replaced_whole(tmp_path):
    assert create_durably(tmp_path / "claim", "first")
    assert not create_durably(tmp_path / "claim", "second")
    assert (tmp_path / "claim").read_text() == "first"
    write_durably(tmp_path / "claim", "third")
    assert (tmp_path / "claim").read_text() == "third"
    assert [path.name for path in tmp_path.iterdir()] == ["claim"]


def test_a_value_must_fit_the_memory_it_overwrites():
    address = environment_address("PATH")
    assert address is not None
    with pytest.raises(ValueError, match="there is room for 3"):
        overwrite_environment(address, 3, "four")


@pytest.mark.parametrize(
    ("user", "is_root", "users_are_known"), [(None, True, True), ("nobody", False, True), ("nobody", True, False)]
)
def test_a_job_keeps_the_agents_account_unless_root_knows_its_user(user, is_root, users_are_known):
    assert job_account(user, is_root=is_root, users_are_known=users_are_known) is None


def test_a_known_user_gets_their_account():
    account = job_account("nobody", is_root=True, users_are_known=True)
    assert account is not None
    assert account.environment["USER"] == "nobody"
    assert account.user.uid == pwd.getpwnam("nobody").pw_uid

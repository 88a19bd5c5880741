"""Every registry does the same: cards live as long as they are renewed."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time

import msgpack
import pytest
import zmq

from naspipe.config.errors import ConfigError, TransportError
from naspipe.distill.registry import (
    PREFIX,
    OwnRegistry,
    RedisRegistry,
    RegistryWatch,
    open_registry,
)
from naspipe.distill.teacher_card import TeacherCard, own_pair, pack_card, read_card, read_keys
from naspipe.distill.teacher_pool import CardTable, listen, serve
from tests.distill.servers import KIND, free_port, redis_server


def card(name="a", address="ipc:///nowhere"):
    return TeacherCard(name, address, "", "digest", "class")


class OwnServer:
    """A run's registry in a thread."""

    def __init__(self, directory):
        self.address = f"ipc://{directory}/registry"
        self._is_over = threading.Event()
        self.start()

    def start(self):
        self._is_over.clear()
        self.table = CardTable()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        with zmq.Context() as context, listen(context, self.address) as socket:
            while not self._is_over.is_set():
                serve({socket: True}, self.table, 10)

    def kill(self):
        self._is_over.set()
        self._thread.join()


@pytest.fixture(params=["own", "redis"])
def registry_and_server(request, tmp_path):
    if request.param == "own":
        server = OwnServer(tmp_path)
        yield OwnRegistry(server.address, timeout_seconds=0.3), server
        server.kill()
    else:
        print(f"the Redis server of this test: {KIND}")
        with redis_server(tmp_path) as server:
            yield RedisRegistry(server.url), server


def test_cards_are_shown_until_they_expire_or_are_withdrawn(registry_and_server):
    registry, _ = registry_and_server
    assert list(registry.cards()) == []
    registry.announce(card("b"), 5)
    registry.announce(card("a"), 0.2)
    registry.announce(card("c"), 5)
    assert [each.name for each in registry.cards()] == ["a", "b", "c"]
    registry.withdraw("c")
    registry.announce(card("b", "ipc:///elsewhere"), 5)
    time.sleep(0.3)
    assert list(registry.cards()) == [card("b", "ipc:///elsewhere")]


def test_a_registry_that_is_gone_and_comes_back_empty(registry_and_server):
    registry, server = registry_and_server
    registry.announce(card(), 5)
    server.kill()
    for ask in (registry.cards, lambda: registry.announce(card(), 5)):
        with pytest.raises(TransportError, match="does not answer"):
            ask()
    server.start()
    assert list(registry.cards()) == []
    registry.announce(card(), 5)
    assert list(registry.cards()) == [card()]


def test_who_is_known_stays_known_while_the_registry_is_down(registry_and_server):
    registry, server = registry_and_server
    registry.announce(card(), 60)
    watch = RegistryWatch([registry], ttl_seconds=0.8)
    try:
        assert waited(watch) == [card()] == list(watch.take())  # however often it is asked
        server.kill()
        time.sleep(0.5)
        server.start()
        time.sleep(0.5)  # empty, and nobody has shown a card yet
        assert not select.select([watch.fileno()], [], [], 0)[0]
        with contextlib.suppress(TransportError):  # a connection that broke just now
            registry.announce(card("b"), 60)
        registry.announce(card("b"), 60)
        assert [each.name for each in waited(watch)] == ["a", "b"]
        deadline = time.monotonic() + 10
        while [each.name for each in waited(watch)] != ["b"] and time.monotonic() < deadline:
            pass
    finally:
        watch.close()


def waited(watch):
    assert select.select([watch.fileno()], [], [], 10)[0], "no news"
    return list(watch.take())


@pytest.mark.parametrize(
    "words", [b"", b"\xc1", b"\x91\xa4nope", b"\x93\xa8announce\xc4\x01x\x01", b"\x90" * 99]
)
def test_garbage_is_answered_with_nothing(words):
    assert CardTable().answer(words) is None


def test_a_registry_holds_no_more_than_so_many(monkeypatch):
    monkeypatch.setattr("naspipe.distill.teacher_pool.MAX_CARDS", 2)
    table = CardTable()
    for name in "abc":
        assert table.answer(words("announce", pack_card(card(name)), 5), is_own=False) == []
    assert len(table.answer(words("cards"))) == 2
    assert table.answer(words("announce", pack_card(card("own")), 5)) == []
    assert len(table.answer(words("cards"))) == 3, "strangers take no place of the run's own"


@pytest.mark.parametrize("data", [b"", b"\x90", b"\x95\x01\x02\x03\x04\x05", b"x" * 5000])
def test_what_is_no_card(data):
    with pytest.raises(TransportError, match="a teacher's card cannot be read"):
        read_card(data)


def test_foreign_values_in_a_redis_are_left_out(tmp_path):
    with redis_server(tmp_path) as server:
        registry = RedisRegistry(server.url)
        registry.announce(card(), 5)
        registry._client.set(f"{PREFIX}x", b"not a card")
        registry._client.set("others", b"data")
        assert list(registry.cards()) == [card()]


def test_registries_by_address():
    assert isinstance(open_registry("tcp://127.0.0.1:1"), OwnRegistry)
    with pytest.raises(ConfigError, match="expected redis://HOST or tcp://HOST:PORT, found http"):
        open_registry("http://nobody")
    registry = open_registry(f"redis://127.0.0.1:{free_port()}")
    with pytest.raises(TransportError, match="does not answer"):
        registry.cards()


def test_keys(tmp_path):
    public, _ = own_pair(tmp_path / "own")
    assert own_pair(tmp_path / "own")[0] == public
    (tmp_path / "known").write_text(f"# of our teachers\n\n{public} teacher on host 7\n")
    assert read_keys(tmp_path / "known") == {public}
    (tmp_path / "known").write_text(f"{public}\nno-key\n")
    with pytest.raises(ConfigError, match="line 2: expected a public key of 40 characters"):
        read_keys(tmp_path / "known")
    with pytest.raises(ConfigError, match="expected a file at"):
        read_keys(tmp_path / "nothing")
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="expected a place for a key, found"):
        own_pair(tmp_path / "file" / "key")
    (tmp_path / "own").chmod(0o644)
    with pytest.raises(ConfigError, match="only you may read"):
        own_pair(tmp_path / "own")


def test_strangers_hire_nobody_and_leave_the_runs_own_cards_alone():
    """Over the address at which a run's registry listens for others."""
    done = []
    table = CardTable(hire=done.append, release=done.append)
    own, other = card("teacher-0"), card("other")
    assert table.answer(words("announce", pack_card(own), 5.0)) == []
    for said in (
        words("hire", 3),
        words("release", "teacher-0"),
        words("withdraw", "teacher-0"),
        words("announce", pack_card(card("teacher-0", "tcp://1.2.3.4:5")), 5.0),
    ):
        assert table.answer(said, is_own=False) is None
    assert not done
    assert table.answer(words("announce", pack_card(other), 5.0), is_own=False) == []
    assert table.answer(words("cards"), is_own=False) == [pack_card(own), pack_card(other)]
    assert table.answer(words("withdraw", "other"), is_own=False) == []
    assert table.answer(words("hire", 3)) == [] and done == [3]


def words(*said):
    return msgpack.packb(list(said))


@pytest.mark.parametrize(
    "answer", [b":x\r\n", b"*x\r\n", b"$zz\r\n", b"*1\r\n:1\r\n", b"\xff\xfe", b"+OK\r\n", b""]
)
def test_a_server_that_is_no_redis(answer):
    """Whatever its client makes of the bytes, whoever looks for cards goes on."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve_garbage():
            with contextlib.suppress(OSError):
                while True:
                    line, _ = listening.accept()
                    with line:
                        line.recv(4096)
                        line.sendall(answer * 20)

        threading.Thread(target=serve_garbage, daemon=True).start()
        registry = RedisRegistry(f"redis://127.0.0.1:{listening.getsockname()[1]}")
        with pytest.raises(TransportError, match="the registry does not answer"):
            registry.cards()
        listening.shutdown(socket.SHUT_RDWR)

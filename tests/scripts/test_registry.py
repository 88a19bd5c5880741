"""scripts/registry.sh: a server on one address, with a password or said to be open."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from naspipe.config.errors import TransportError
from naspipe.distill.registry import open_registry
from naspipe.distill.teacher_card import TeacherCard
from tests.distill.servers import PROGRAM, free_port, wait_for_port

SCRIPT = Path(__file__).parents[2] / "scripts/registry.sh"
CARD = TeacherCard("a", "tcp://127.0.0.1:1", "", "d", "c")


def said(*words: str, path: str | None = None) -> tuple[int, str]:
    environment = {"PATH": path} if path is not None else None
    done = subprocess.run(
        ["/bin/bash", str(SCRIPT), *words], capture_output=True, text=True, env=environment
    )
    return done.returncode, done.stderr


@pytest.mark.skipif(PROGRAM is None, reason="needs redis-server or valkey-server")
@pytest.mark.parametrize("password", ["", "a.long-password_1"])
def test_teachers_show_their_cards_there(tmp_path: Path, password: str) -> None:
    (tmp_path / "secret").write_text(password + "\n")
    port = free_port()
    words = ["--password-file", str(tmp_path / "secret")] if password else []
    process = subprocess.Popen(
        [str(SCRIPT), "--port", str(port), *words], stdout=subprocess.DEVNULL, cwd=tmp_path
    )
    try:
        wait_for_port(port)
        registry = open_registry(f"redis://{f':{password}@' if password else ''}127.0.0.1:{port}")
        registry.announce(CARD, 5)
        assert list(registry.cards()) == [CARD]
        arguments = Path(f"/proc/{process.pid}/cmdline").read_bytes()
        assert b"password_1" not in arguments
        if password:
            with pytest.raises(TransportError, match=r"(?i)auth"):
                open_registry(f"redis://127.0.0.1:{port}").cards()
    finally:
        process.terminate()
        assert process.wait(10) == 0
    assert sorted(each.name for each in tmp_path.iterdir()) == ["secret"], "nothing is kept"


def test_what_it_refuses(tmp_path: Path) -> None:
    code, text = said("--bind", "10.0.0.5")
    assert code == 2 and ("--open on a private network" in text or PROGRAM is None)
    assert said("--bidn", "x")[0] == 2
    (tmp_path / "secret").write_text('x"\nrequirepass nothing\n')
    assert said("--password-file", str(tmp_path / "secret"))[0] == 2
    assert said("--password-file", str(tmp_path / "none"))[0] == 2


def test_without_a_server_it_says_how_to_get_one(tmp_path: Path) -> None:
    code, text = said(path=str(tmp_path))
    assert code == 2 and "apt-get install redis-server" in text

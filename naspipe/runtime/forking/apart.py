"""Work in a process of its own, so that this one stays fit for forking stages."""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from naspipe.config.errors import ConfigError, StageFailedError, TransportError
from naspipe.runtime.forking.fork import FORK, end_all, obituary, quiet_fork
from naspipe.runtime.forking.own_thread import in_own_thread

SILENCE_SECONDS = 600.0
"""In which the work must say that it goes on."""

Work = Callable[[Callable[[], None]], dict[str, Any]]
"""What returns JSON, and says now and then that it goes on."""


SLOW_SECONDS = 1.0
"""Work that takes longer than that is told of."""


def done_apart(
    work: Work,
    what: str,
    silence_seconds: float = SILENCE_SECONDS,
    say: Callable[[], None] | None = None,
) -> dict[str, Any]:
    """What the work returns.

    Args:
        work: what is done.
        what: how messages call it.
        silence_seconds: in which it must say that it goes on.
        say: called where the work takes more than a second.

    Raises:
        ConfigError: the work's own.
        StageFailedError: when it raises something else, or its process ends.
        TransportError: when it says nothing for too long.
    """
    receiver, sender = FORK.Pipe(duplex=False)
    process = FORK.Process(target=_main, args=(work, sender), name="naspipe-apart")
    with receiver, quiet_fork():
        process.start()
        sender.close()
        try:
            if say is not None and not receiver.poll(SLOW_SECONDS):
                say()
            answer: dict[str, Any] = {"goes on": True}
            while "goes on" in answer:
                if not receiver.poll(silence_seconds):
                    raise TransportError(f"{what} was silent for {silence_seconds:g} s")
                answer = json.loads(receiver.recv_bytes())
        except EOFError:
            raise StageFailedError(0, what, obituary(process)) from None
        finally:
            end_all([process])
    if refusal := answer.get("refusal"):
        raise ConfigError(refusal)
    if failure := answer.get("failure"):
        raise StageFailedError(0, what, failure)
    done: dict[str, Any] = answer["done"]
    return done


def _main(work: Work, sender: Connection) -> None:
    def go_on() -> None:
        sender.send_bytes(json.dumps({"goes on": True}).encode())

    try:
        # The caller's helpers have stayed with it. Who wants several threads starts anew.
        answer: dict[str, Any] = {"done": in_own_thread(1, lambda: work(go_on))}
    except ConfigError as error:
        answer = {"refusal": str(error)}
    except Exception:
        answer = {"failure": traceback.format_exc()}
    sender.send_bytes(json.dumps(answer).encode())

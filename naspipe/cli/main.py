"""Train supernets on several stages at once, with the bits of a plain one-at-a-time loop."""

from __future__ import annotations

import argparse
import platform
import re
import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version
from types import ModuleType
from typing import NoReturn

from naspipe import __version__
from naspipe.cli.data import run_with_data
from naspipe.cli.output import complain, silence, systems_line
from naspipe.config.errors import ConfigError, NaspipeError, RunInterruptedError
from naspipe.config.text import did_you_mean

SUBCOMMANDS = {
    "train": "train a supernet and write a run directory",
    "distill": "teach each block of a trained network to a block, or a supernet, of its own",
    "teach": "compute a teacher's labels: into a file, or for runs that ask",
    "runs": "list the runs of a directory: status, step, speed, when it was last seen",
    "verify": "train steps of a run again in a plain PyTorch loop, and compare every bit",
    "compare": "show whether runs left the same bits, or what differs first",
    "log": "print who read and who wrote each layer, in order",
    "report": "write a page that shows what runs did: timeline, waits, losses, access order",
    "profile": "show what each kind of layer costs on this machine",
    "simulate": "run a training's schedule on a virtual clock",
    "plan": "show what more stages, other samplers or budgets would give",
    "search": "find the best subnets of a run, judged with its weights",
    "retrain": "train subnets of a search alone, and say how far its ranking holds",
    "combine": "rate the paths of blocks that were taught, and combine the best within limits",
    "export": "write a subnet of a run as an ordinary PyTorch module",
    "data": "fetch and check the data sets that the examples train on",
}
"""What ``naspipe --help`` lists; each is a module of this package, imported when it is called.

Such a module has a docstring (its help), ``add_arguments(parser)`` and ``run(arguments) -> int``.
"""

_EXAMPLE = """\
example: train on one stage and on two, then show that the bits are the same
  naspipe train nlp.c1 --scale tiny --steps 100 --seed 1 --stages 1 --run-dir runs/one
  naspipe train nlp.c1 --scale tiny --steps 100 --seed 1 --stages 2 --run-dir runs/two
  naspipe compare runs/one runs/two
  naspipe log runs/two --layer 3.1

`naspipe COMMAND --help` says more about each command.
exit status: 0 done; 1 failed, or runs differ; 2 the input cannot be used
"""

_EXIT_FAILED = 1
_EXIT_USAGE = 2
_EXIT_INTERRUPTED = 130
_EXIT_BROKEN_PIPE = 141
_EXIT_SIGNAL = 128


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line (without the program's name) and return its exit status.

    Raises:
        SystemExit: from ``--help`` and ``--version`` (0).
    """
    # NNI warns of every class of a newer torch that it cannot wrap, when a user's file imports it.
    warnings.filterwarnings("ignore", category=RuntimeWarning, module=r"nni\.nas\.nn\.pytorch\.")
    words = list(sys.argv[1:] if argv is None else argv)
    name = next((word for word in words if not word.startswith("-")), None)
    try:
        module = _load(name) if name in SUBCOMMANDS else None
        parser = build_parser(name, module)
        arguments = parser.parse_args(words)
        if module is None:
            parser.print_help(sys.stderr)
            return _EXIT_USAGE
        status = run_with_data(module.run, arguments)
        if sys.stdout is not None:
            sys.stdout.flush()
    except ConfigError as error:
        complain(str(error))
        return _EXIT_USAGE
    except RunInterruptedError as error:
        complain(str(error))
        return _EXIT_SIGNAL + error.signal_number
    except NaspipeError as error:
        complain(str(error))
        return _EXIT_FAILED
    except KeyboardInterrupt as error:
        complain(str(error) or "interrupted")
        return _EXIT_INTERRUPTED
    except BrokenPipeError:
        silence(sys.stdout)
        return _EXIT_BROKEN_PIPE
    except (OSError, MemoryError, ImportError) as error:
        complain(systems_line(error))
        silence(sys.stdout)
        return _EXIT_FAILED
    return status


class Parser(argparse.ArgumentParser):
    """A parser whose refusals are one line, like every other one."""

    def error(self, message: str) -> NoReturn:
        """Refuse the command line, and say what is near to an unknown word of it.

        Raises:
            ConfigError: always.
        """
        raise ConfigError(f"{_with_meant(message, self._options())}; see {self.prog} --help")

    def _options(self) -> list[str]:
        """Those of the parser, and of the command that was chosen."""
        commands = [each.choices or {} for each in self._actions if each.nargs == argparse.PARSER]
        parsers = [self, *(parser for each in commands for parser in dict(each).values())]
        return [option for parser in parsers for option in parser._option_string_actions]


def _with_meant(message: str, options: Sequence[str]) -> str:
    """What argparse says of an unknown word, with the known one that is nearest."""
    known: Sequence[str] = options
    found = re.match(r"unrecognized arguments: (--[^ =]+)", message)
    if found is None and (found := re.search(r"invalid choice: '?([^' ]+)'? \(", message)):
        known = re.findall(r"[^', ()]+", message[found.end() :].removeprefix("choose from "))
    if found is None:
        return message
    end = found.end(1) + message[found.end(1) :].startswith("'")
    return f"{message[:end]}{did_you_mean(found[1], known)}{message[end:]}"


class _Version(argparse.Action):
    """Says which naspipe this is, and what it runs on."""

    def __init__(self, option_strings: Sequence[str], dest: str) -> None:
        super().__init__(option_strings, dest, nargs=0, help="show naspipe's version and torch's")

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        """Print one line and leave."""
        python = platform.python_version()
        print(f"naspipe {__version__} (torch {version('torch')}, Python {python})")
        parser.exit()


def build_parser(
    chosen: str | None = None, module: ModuleType | None = None
) -> argparse.ArgumentParser:
    """The parser of all commands; only the chosen one's arguments are known."""
    parser = Parser(
        prog="naspipe",
        description=__doc__,
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action=_Version)
    commands = parser.add_subparsers(metavar="COMMAND", title="commands", dest="command")
    for name, summary in SUBCOMMANDS.items():
        subparser = commands.add_parser(
            name,
            help=summary,
            description=module.__doc__ if module and name == chosen else None,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        if module and name == chosen:
            module.add_arguments(subparser)
    return parser


def _load(name: str | None) -> ModuleType:
    return import_module(f"naspipe.cli.{name}")

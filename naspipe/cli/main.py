"""Train supernets on several pipeline stages, bit-identical to a plain sequential loop."""

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
    "distill": "distil each block of a trained network into a block, or a supernet, of its own",
    "teach": "compute a teacher's labels, into a file or on request from runs",
    "runs": "list the runs in a directory: status, step, speed, time of last activity",
    "verify": "repeat steps of a run in a plain PyTorch loop, and compare every bit",
    "compare": "check whether runs are bit-identical, and show the first difference",
    "log": "print the reads and writes of each layer, in order",
    "report": "write a page about runs: timeline, waits, losses, access order",
    "profile": "show the cost of each kind of layer on this machine",
    "simulate": "simulate the schedule of a training run on a virtual clock",
    "plan": "compare numbers of stages, samplers and memory budgets by simulation",
    "search": "find the best subnets of a run, evaluated with its weights",
    "retrain": "train subnets of a search alone, and report how well its ranking holds",
    "combine": "rate the paths of distilled blocks, and combine the best within limits",
    "export": "export a subnet of a run as an ordinary PyTorch module",
    "data": "fetch and check the data sets used by the examples",
}
"""The commands in ``naspipe --help``; each is a module of this package, imported when called.

Such a module has a docstring (its help), ``add_arguments(parser)`` and ``run(arguments) -> int``.
"""

_EXAMPLE = """\
example: train on one stage and on two, then show that the results are bit-identical
  naspipe train nlp.c1 --scale tiny --steps 100 --seed 1 --stages 1 --run-dir runs/one
  naspipe train nlp.c1 --scale tiny --steps 100 --seed 1 --stages 2 --run-dir runs/two
  naspipe compare runs/one runs/two
  naspipe log runs/two --layer 3.1

Run `naspipe COMMAND --help` for more information about a command.
exit status: 0 success; 1 failure, or runs differ; 2 invalid input
"""

_EXIT_FAILED = 1
_EXIT_USAGE = 2
_EXIT_INTERRUPTED = 130
_EXIT_BROKEN_PIPE = 141
_EXIT_SIGNAL = 128


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line (without the program's name) and return its exit status."""
    # NNI warns about every class of a newer torch that it cannot wrap, when a user's file imports
    # it.
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
    """A parser that reports errors in one line, like all other errors."""

    def error(self, message: str) -> NoReturn:
        """Reject the command line, and suggest the known word most similar to an unknown one."""
        raise ConfigError(f"{_with_meant(message, self._options())}; see {self.prog} --help")

    def _options(self) -> list[str]:
        """Return the options of the parser, and of the selected command."""
        commands = [each.choices or {} for each in self._actions if each.nargs == argparse.PARSER]
        parsers = [self, *(parser for each in commands for parser in dict(each).values())]
        return [option for parser in parsers for option in parser._option_string_actions]


def _with_meant(message: str, options: Sequence[str]) -> str:
    """Return argparse's message on an unknown word, with the most similar known one."""
    known: Sequence[str] = options
    found = re.match(r"unrecognized arguments: (--[^ =]+)", message)
    if found is None and (found := re.search(r"invalid choice: '?([^' ]+)'? \(", message)):
        known = re.findall(r"[^', ()]+", message[found.end() :].removeprefix("choose from "))
    if found is None:
        return message
    end = found.end(1) + message[found.end(1) :].startswith("'")
    return f"{message[:end]}{did_you_mean(found[1], known)}{message[end:]}"


class _Version(argparse.Action):
    """Prints the versions of naspipe, torch and Python, and exits."""

    def __init__(self, option_strings: Sequence[str], dest: str) -> None:
        super().__init__(
            option_strings,
            dest,
            nargs=0,
            help="show the versions of naspipe, torch and Python, and exit",
        )

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        python = platform.python_version()
        print(f"naspipe {__version__} (torch {version('torch')}, Python {python})")
        parser.exit()


def build_parser(
    chosen: str | None = None, module: ModuleType | None = None
) -> argparse.ArgumentParser:
    """Build the parser of all commands, with arguments only for the chosen one."""
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

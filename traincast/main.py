"""The command line, ``traincast``: each command is one call that a notebook can make too.

Exit 0: done. Exit 2: bad input, one sentence on standard error. Exit 1: our bug.
Exit 130: interrupted.
"""

from __future__ import annotations

import gc
import os
import sys
import traceback
from contextlib import suppress
from typing import Annotated

import typer

import traincast
from schedules.input_error import InputError
from traincast.commands import (
    analyze,
    calibrate,
    check,
    compare,
    diff,
    goodput,
    init,
    listing,
    replay,
    run,
    schedule,
    search,
    sweep,
    topology,
    validate,
)
from traincast.commands.parts.recorder_measures import recorder

INTERRUPTED = 130  # exit code of what Ctrl-C ended
COLLECTED = 100_000
"""Python looks for cycles after so many new objects, not 700: a tenth of a cold start's time."""
ENTRIES = {
    "run": run,
    "compare": compare,
    "sweep": sweep,
    "search": search,
    "diff": diff,
    "check": check,
    "goodput": goodput,
    "schedule": schedule,
    "list": listing,
    "init": init,
    "topology": topology,
    "analyze": analyze,
    "calibrate": calibrate,
    "validate": validate,
    "replay": replay,
}
"""The commands in the order of ``--help``."""


def _say_version(wanted: bool) -> None:
    if wanted:
        print(f"traincast {traincast.__version__}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_say_version, is_eager=True, help="Say the version."),
    ] = False,
) -> None:
    """Take what stands before any command."""


def _of(*names: str) -> typer.Typer:
    """Return the command line with these commands."""
    out = typer.Typer(
        help="From a training recipe to the timeline of its step.",
        epilog="Example: traincast run validation/recipes/korthikanti_22b_full.toml --out out",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    out.callback()(_options)
    for name in names:
        out.command(name, epilog=ENTRIES[name].EXAMPLE)(ENTRIES[name].command)
    return out


app = _of(*ENTRIES)
app.add_typer(recorder, name="record")


def main(arguments: list[str] | None = None) -> None:
    """Run a command and exit: bad input is one sentence, a bug of ours a trace to report."""
    gc.set_threshold(COLLECTED)
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # whose search takes time
    try:
        called = (sys.argv[1:] if arguments is None else arguments)[:1]
        only = _of(*called) if ENTRIES.keys() & called else app  # the others take time to set up
        code = only(args=arguments, standalone_mode=False, obj=arguments)
        sys.stdout.flush()  # while a full disk can still be said
    except BrokenPipeError:  # the reader of our output has left, such as head
        _drop_output()
        code = 0
    except InputError as error:
        code = _refuse(str(error))
    except OSError as error:
        if error.filename is None:  # otherwise Python would try to write the output once more
            _drop_output()
        where = error.filename or "the output"
        code = _refuse(f"cannot read or write {where}: {error.strerror or error}")
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    except Exception as error:
        said = getattr(error, "format_message", None)  # typer's own: usage
        if said:
            code = _refuse(f"{said()}{_example(error)}") if said() else 2
        else:
            traceback.print_exc()
            print(
                "error: this is a bug in traincast; please report the lines above", file=sys.stderr
            )
            code = 1
    if code == INTERRUPTED:  # which typer may have said itself
        print("interrupted", file=sys.stderr)
    sys.exit(code or 0)


def _example(error: Exception) -> str:
    """Return how the command is called, where an argument that it needs was left out."""
    missing = type(error).__name__ == "MissingParameter"
    context = getattr(error, "ctx", None) if missing else None
    return f" {context.command.epilog}" if context and context.command.epilog else ""


def _drop_output() -> None:
    with suppress(OSError):  # no file, as in a notebook
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _refuse(sentence: str) -> int:
    red, plain = ("\033[31m", "\033[0m") if sys.stderr.isatty() else ("", "")
    print(f"{red}error:{plain} {' '.join(sentence.split())}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    main()

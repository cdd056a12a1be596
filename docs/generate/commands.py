"""What every command takes, as its ``--help`` says it, in Markdown."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any, get_args, get_type_hints

import typer

from sim.table import markdown, table
from traincast.main import app

VALUES = {int: "whole number", float: "number", str: "text"}


def text() -> str:
    """Return a section for every command, in the order of ``traincast --help``."""
    return "\n".join(line for name, one in commands() for line in section(name, one)).rstrip()


def commands() -> Iterator[tuple[str, Any]]:
    """Yield every command with the words by which it is called."""
    yield from _below(typer.main.get_command(app), "")


def _below(group: Any, before: str) -> Iterator[tuple[str, Any]]:
    for name, one in group.commands.items():
        yield f"{before}{name}", one
        if hasattr(one, "commands"):
            yield from _below(one, f"{before}{name} ")


def section(name: str, command: Any) -> list[str]:
    """Return the lines about one command: what it does, how it is called, what it takes."""
    example = (command.epilog or "").removeprefix("Example: ")
    rows = [row(command, parameter) for parameter in command.params]
    out = [f"## {name}" if " " not in name else f"### {name}", "", about(command), ""]
    out += ["```console", f"$ {example}", "```", ""] if example else []
    options = table(rows, "argument or option", "value", "default", "meaning", left=True)
    return [*out, markdown(options), ""] if rows else out


def about(command: Any) -> str:
    """Return the command's own text, each paragraph on a line."""
    paragraphs = inspect.cleandoc(command.help or "").split("\n\n")
    return "\n\n".join(" ".join(one.split()) for one in paragraphs)


def row(command: Any, parameter: Any) -> list[str]:
    """Return the name of an argument or option, its value, its default and its meaning."""
    option = parameter.param_type_name == "option"
    names = [*parameter.opts, *parameter.secondary_opts] if option else [label(parameter)]
    many = parameter.multiple or parameter.nargs == -1
    return [
        ", ".join(f"`{name}`" for name in names),
        (value(command, parameter) if option else "") + (", may be repeated" if many else ""),
        default(parameter),
        " ".join((parameter.help or "").split()),
    ]


def label(parameter: Any) -> str:
    """Return how an argument is called in the usage line."""
    return str(parameter.metavar or parameter.name.upper())


def value(command: Any, parameter: Any) -> str:
    """Return what an option takes: nothing, a word that stands for it, or a kind of number."""
    hint = get_type_hints(inspect.unwrap(command.callback))[parameter.name]
    kinds = {one for kind in (hint, *get_args(hint)) for one in (kind, *get_args(kind))}
    if bool in kinds:
        return ""
    if parameter.metavar:
        return f"`{parameter.metavar}`"
    return next((words for kind, words in VALUES.items() if kind in kinds), "file or folder")


def default(parameter: Any) -> str:
    """Return what an option is when it is left out."""
    if parameter.required:
        return "required"
    given = parameter.default
    return "" if given in (None, False, ()) or callable(given) else f"`{given}`"

"""Code from outside of the package: a Python file, run when a recipe or a command names it.

An error in it is told in one sentence, with the line. A file ``NAME.py`` gives what it defines as
``NAME``. It may import the packages here; it finds files beside itself as any program does.
"""

from __future__ import annotations

import functools
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from schedules.input_error import InputError
from schedules.text_file import read_text

MOST_LETTERS = 300  # how much of an exception's text is repeated


def is_path(name: str) -> bool:
    """Return whether a name is that of a Python file.

    >>> is_path("./mine.py"), is_path("gpipe")
    (True, False)
    """
    return name.endswith(".py")


def module(path: str | Path, what: str) -> ModuleType:
    """Run the file as a module; the same text gives the same module.

    Raises InputError when the file cannot be read or run, or defines no function of its own name.
    ``what`` is what the message calls the file.
    """
    made = _run(str(path), read_text(Path(path), f"{what} "), what)
    name = Path(path).stem
    if not callable(getattr(made, name, None)):
        raise InputError(f"{path} defines no function {name}; {what} is the function of that name")
    return made


def function(path: str | Path, what: str) -> Callable[..., Any]:
    """Return the function of the file's own name; it raises InputError for what its code raises."""
    own: Callable[..., Any] = getattr(module(path, what), Path(path).stem)

    @functools.wraps(own)
    def called(*args: Any, **kwargs: Any) -> Any:
        with said(path):
            return own(*args, **kwargs)

    return called


@contextmanager
def said(path: str | Path) -> Iterator[None]:
    """Turn what code of the file raises into an InputError of one sentence, with the line."""
    try:
        yield
    except (Exception, SystemExit) as error:
        text = " ".join(str(error).split())[:MOST_LETTERS]
        kind = "" if type(error) in (ValueError, InputError) else f"{type(error).__name__}: "
        line = _line(error, str(path))
        raise InputError(f"{path}{f', line {line}' if line else ''}: {kind}{text}") from None


@functools.lru_cache(maxsize=64)
def _run(path: str, text: str, what: str) -> ModuleType:
    made = ModuleType(Path(path).stem)
    made.__file__ = path
    with said(path):
        exec(compile(text, path, "exec"), made.__dict__)
    return made


def _line(error: BaseException, path: str) -> int | None:
    """Return the last line of the file that the error passed, or the line that is no Python."""
    if isinstance(error, SyntaxError) and error.filename == path:
        return error.lineno
    frames = traceback.extract_tb(error.__traceback__)
    return next((frame.lineno for frame in reversed(frames) if frame.filename == path), None)

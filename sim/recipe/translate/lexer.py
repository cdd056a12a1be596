"""Splitting a shell script's text into statements, each a list of raw words."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from schedules.input_error import InputError

PIECE = (
    r"'[^']*'|\"(?:\\.|[^\"\\])*\"|\$\(\([^()]*\)\)|\$\([^()]*(?:\([^()]*\)[^()]*)*\)"
    r"|\$\{[^{}]*(?:\$\{[^{}]*\}[^{}]*)*\}|`[^`]*`|\\.|[^\s'\"\\;&|()<>`$]|\$"
)
"""A quoted text, a substitution or one character: the pieces of a word."""
_TOKEN = re.compile(
    r"(?P<blank>[ \t\r]+|\\\r?\n|(?<![^\s;&|()])\#[^\n]*)"
    rf"|(?P<redirect>(?:(?<![^\s;&|()])\d+)?(?:<<<|>>|[<>])(?:&\d|&?[ \t]*(?:{PIECE})*))"
    rf"|(?P<word>(?:{PIECE})+)"
    r"|(?P<end>\n|;;|&&|\|\||[;&|])|(?P<open>\()|(?P<close>\))",
    re.DOTALL,
)
_DOCUMENT = re.compile(r"<<-?[ \t]*(['\"]?)(\w+)\1[^\n]*\n(?:.*\n)*?[ \t]*\2[ \t]*(?=\n|\Z)")

Words = list[str]


class Statement(NamedTuple):
    """The raw words of one statement; an array is ``NAME=(`` … ``)``."""

    line: int
    words: Words
    joint: str  # the separator before it: a new line, ;, &, && or ||


def statements(text: str, where: str) -> Iterator[Statement]:
    """Yield the statements of a script.

    Raises InputError, which names the script ``where``, for a quote or bracket without an end.

    >>> [words for _, words, _ in statements("A=(1 2) # few\\nrun 'b c' > log", "a.sh")]
    [['A=(', '1', '2', ')'], ['run', "'b c'"]]
    """
    words: Words = []
    begin, line, array, joint = 0, 1, 0, ""
    for found in _tokens(_without_documents(text), where):
        kind, said = found.lastgroup, found.group()
        if kind == "word":
            begin = begin if words else line
            words.append(said)
        elif kind == "open" and words and words[-1].endswith("=") and not array:
            words[-1], array = words[-1] + "(", line
        elif kind == "close" and array:
            words.append(")")
            array = 0
        elif kind in ("open", "close") and not array:
            words.append(said)  # from a function, a subshell or a case
        elif kind == "end" and words and not array:
            yield Statement(begin, words, joint)
            words, joint = [], said
        line += said.count("\n")
    if array:
        raise InputError(f"{where}: the array that begins on line {array} has no )")
    if words:
        yield Statement(begin, words, joint)


def _tokens(text: str, where: str) -> Iterator[re.Match[str]]:
    at = 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            line = text.count("\n", 0, at) + 1
            raise InputError(f"{where}: the quote or bracket on line {line} has no end")
        yield found
        at = found.end()


def _without_documents(text: str) -> str:
    """Return the text without here-documents, which are data; lines keep their numbers."""
    return _DOCUMENT.sub(lambda found: "\n" * found.group().count("\n"), text)

"""The words that a launch script passes to its training command. The script is read, never run.

It understands comments, line continuations, quotes, assignments, arrays (``A=(…)``, ``A+=(…)``),
``$A``, ``${A}``, ``${A[@]}``, ``${A:-default}``, and ``if`` with one comparison of texts or whole
numbers. A variable that the file does not assign stays in the words as it is written. The contents
of any other ``if``, and of loops, ``case`` and functions, are left out and named.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from schedules.input_error import InputError
from sim.recipe.translate.expansion import expand
from sim.recipe.translate.lexer import Statement, Words, statements

_ASSIGNMENT = re.compile(r"(\w+)(\+?)=(.*)", re.DOTALL)
_OTHERS = re.compile(r"pretrain_(bert|t5|ict|retro|mamba|hybrid|vlm|vision\w*)\.py")
"""Megatron's scripts for other models."""
_BLOCKS = {"for": "done", "while": "done", "until": "done", "case": "esac", "function": "}"}


MOST_LETTERS = 2**16


@dataclass
class _Script:
    """The parts of a script that were read (variables, commands), and what was left out."""

    where: str
    variables: dict[str, str | Words] = field(default_factory=dict)
    commands: list[Words] = field(default_factory=list)
    left_out: Words = field(default_factory=list)
    branches: list[bool | None] = field(default_factory=list)  # per open if; None: unknown
    taken: list[bool] = field(default_factory=list)  # per open if: whether a branch was taken
    blocks: Words = field(default_factory=list)  # ends of the open loops, cases and functions


def arguments(text: str, where: str) -> tuple[Words, Words]:
    """Return the words after the ``.py`` of the training command, and what was left out.

    Where no command has a ``.py``, they are all words of the file's arrays and other variables.
    Raises InputError, which names the file ``where``, when quotes or brackets do not match.

    >>> arguments('TP=8; A=(--bf16 --seq-length 2048)\\ntorchrun x.py ${A[@]} --tp $TP', "a.sh")
    (['--bf16', '--seq-length', '2048', '--tp', '8'], [])
    """
    if len(text) > MOST_LETTERS:
        raise InputError(
            f"{where} is too long for a launch script: over {MOST_LETTERS:,} characters"
        )
    script = _Script(where)
    _read_all(script, list(statements(text, where)))
    runs = [words for words in map(_from_python, script.commands) if words[1:]]
    runs = [words for words in runs if "--num-layers" in words] or runs[-1:]
    if runs:
        program, *words = runs[-1]
        if found := _OTHERS.search(program):
            raise InputError(
                f"{where}: {found[0]} does not train a decoder; other models are not simulated"
            )
        return words, script.left_out
    parts = [v.split() if isinstance(v, str) else v for v in script.variables.values()]
    return [word for part in parts if part and part[0][:2] == "--" for word in part], (
        script.left_out
    )


def _from_python(words: Sequence[str]) -> Words:
    """Return the script that a command runs, and the words after it."""
    at = [k for k, word in enumerate(words) if word.endswith(".py")]
    return list(words[at[0] :]) if at else []


def _read_all(script: _Script, statements: Sequence[Statement]) -> None:
    holds: bool | None = True  # whether the last statement holds; None: only a shell would know
    for k, (line, words, joint) in enumerate(statements):
        behind = statements[k + 1].joint if k + 1 < len(statements) else ""
        if words[0] in ("if", "elif") and behind in ("&&", "||"):
            words = [words[0], "several"]  # several comparisons, which we do not judge
        if joint in ("&&", "||") and words[0] not in ("if", "then", "fi"):
            runs = None if holds is None else holds is (joint == "&&")
            if runs is None and not _is_test(words):
                script.left_out.append(f"{words[0]} (line {line})")
            if not runs:
                holds = None if runs is None else holds
                continue
        _read(script, line, words)
        holds = _holds(script, words) if _is_test(words) else True


def _is_test(words: Words) -> bool:
    return words[0] in ("[", "[[", "test")


def _read(script: _Script, line: int, words: Words) -> None:
    """Read one statement: a branch, a block that is left out, assignments, or a command."""
    first = words[0]
    if first in _BLOCKS or words[1:3] == ["(", ")"]:
        if not script.blocks and all(script.branches):
            script.left_out.append(f"{first} (line {line})")
        script.blocks.append(_BLOCKS.get(first, "}"))
    elif script.blocks:
        if first == script.blocks[-1]:
            script.blocks.pop()
    elif first in ("if", "elif", "else", "then", "fi"):
        _branch(script, line, words)
    elif all(script.branches) and not _is_test(words):
        _do(script, words)


def _branch(script: _Script, line: int, words: Words) -> None:
    first, rest = words[0], words[1:]
    if first == "if":
        script.branches.append(None)
        script.taken.append(False)
    if not script.branches:
        return
    if first in ("if", "elif"):
        holds = _holds(script, rest)
        if holds is None and all(script.branches[:-1]):
            script.left_out.append(f"{first} (line {line})")
        script.branches[-1] = None if script.taken[-1] else holds
        script.taken[-1] |= holds is not False  # if unknown, no later branch is taken either
    elif first == "else":
        script.branches[-1] = not script.taken[-1]
    elif first == "fi":
        script.branches.pop()
        script.taken.pop()
    if first in ("then", "else") and rest and all(script.branches):
        _do(script, rest)


def _holds(script: _Script, test: Words) -> bool | None:
    """Return whether a comparison holds, or None where only a shell would know."""
    if test[:1] not in (["["], ["[["]) or test[-1:] not in (["]"], ["]]"]):
        return None
    words = [" ".join(expand(script.variables, word)) for word in test[1:-1]]
    if any("$" in word or "`" in word for word in words):
        return None
    match words:
        case ["-z", word]:
            return not word
        case ["-n", word]:
            return bool(word)
        case [one, "=" | "==" | "-eq", other]:
            return one == other
        case [one, "!=" | "-ne", other]:
            return one != other
    return None


def _do(script: _Script, words: Words) -> None:
    """Read assignments, and the command after them if any."""
    rest = words[1:] if words[0] in ("export", "local", "declare", "readonly") else words
    while rest and (found := _ASSIGNMENT.fullmatch(rest[0])):
        name, more, value = found.groups()
        new: str | Words
        if value == "(":
            end = rest.index(")")
            new = [field for word in rest[1:end] for field in expand(script.variables, word)]
        else:
            end, new = 0, " ".join(expand(script.variables, value))
        whole = _joined(script.variables.get(name, ""), new) if more else new
        if sum(map(len, whole)) > MOST_LETTERS // 8:  # it may double with every line
            raise InputError(f"{script.where}: the variable {name} becomes too long")
        script.variables[name] = whole
        rest = rest[end + 1 :]
    if rest:
        script.commands.append([field for word in rest for field in expand(script.variables, word)])


def _joined(old: str | Words, new: str | Words) -> str | Words:
    if isinstance(old, str) and isinstance(new, str):
        return old + new
    return [
        *([old] if isinstance(old, str) and old else old),
        *([new] * isinstance(new, str) or new),
    ]

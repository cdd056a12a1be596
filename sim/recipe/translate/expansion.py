"""The words that a raw word of a shell script becomes: without quotes, variables filled in."""

from __future__ import annotations

import re
from collections.abc import Mapping

from sim.recipe.translate.lexer import PIECE, Words

Variables = Mapping[str, str | Words]

_PIECES = re.compile(PIECE, re.DOTALL)
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)(\[[@*]\])?(?::?[-=]([^}]*(?:\$\{[^}]*\})?))?\})")
_ESCAPED = re.compile(r"\\(?:\r?\n|([\"$`\\]))")


def expand(variables: Variables, word: str) -> Words:
    """Return the words that one raw word becomes; an unknown variable stays as it is written.

    >>> expand({"A": ["1", "2"], "B": "x y"}, '"${A[@]}"'), expand({"B": "x y"}, 'a$B"$B"$C')
    (['1', '2'], ['ax', 'yx y$C'])
    """
    fields: Words = []
    is_open = False  # whether the last field continues
    for piece in _split(word):
        parts = _value(variables, piece)
        if parts and is_open:
            fields[-1] += parts.pop(0)
        fields += parts
        is_open = bool(fields)
    return fields


def _split(word: str) -> Words:
    """Split a word into quoted texts, variables, and the text between them."""
    pieces, plain = [], ""
    at = 0
    while at < len(word):
        found = _VARIABLE.match(word, at) or _PIECES.match(word, at)
        said = found.group() if found else word[at]  # for example a blank in a default
        at += len(said)
        if said[0] in "'\"$`\\" and len(said) > 1:
            pieces += [plain] * bool(plain) + [said]
            plain = ""
        else:
            plain += said
    return pieces + [plain] * bool(plain)


def _value(variables: Variables, piece: str) -> Words:
    if piece[0] == "'":
        return [piece[1:-1]]
    if piece[0] == "\\":
        return [piece[1:] or piece]  # one at the end of a default is text
    if piece[0] == '"':
        inner = _ESCAPED.sub(r"\1", piece[1:-1])
        found = _VARIABLE.fullmatch(inner)
        if found and found[3] == "[@]":
            return _words(variables, found, quoted=True)
        return [_VARIABLE.sub(lambda m: " ".join(_words(variables, m, quoted=True)), inner)]
    found = _VARIABLE.fullmatch(piece)
    return _words(variables, found) if found else [piece]


def _words(variables: Variables, found: re.Match[str], *, quoted: bool = False) -> Words:
    """Return a variable's words, or the variable as written where the file does not assign it."""
    value = variables.get(found[1] or found[2])
    if value is None and found[4] is not None:
        value = " ".join(expand(variables, found[4]))
    if value is None:
        return [found.group()]
    whole = [value] if isinstance(value, str) else value if found[3] else value[:1]
    return list(whole) if quoted else [word for text in whole for word in text.split()]

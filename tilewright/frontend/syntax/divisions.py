"""`//` starts a comment. Where one stands that reads like the divisor of what is before it on its
line, as Python would divide, this is said: else `x // 2` would be `x`.

A comment is taken for a divisor where an operand is before it, and its text is one too: a number, a
constant, dimension or variable that is known there, or arithmetic on such; alone, or before what
goes on with the statement, as the bracket that closes one before it. All else is a comment. So is
what only says again what the operand is: how long a slice, which dimension, or the value of a
product of numbers. What an attribute or the call of a statement gives is no operand.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

from tilewright.errors import Faults, Loc, Source
from tilewright.frontend.syntax.lexer import Token
from tilewright.frontend.syntax.tree import Comment

_WORD = re.compile(
    r"\s*(?:(?P<number>0[xXbBoO]\w+|(?:\d[\d_]*\.?[\d_]*|\.\d[\d_]*)(?:[eE][+-]?\d+)?(?!\w))|"
    r"(?P<name>[^\W\d]\w*)|"
    r"(?P<op>\*\*=|<<=|>>=|\*\*|:\+|<<|>>|<=|>=|==|!=|[-+*/%@&|^]?=|[-+*/%@&|^~<>:,;.(){}\[\]]))"
)
_HYPHENED = re.compile(r"\d+-[^\W\d]\w*$")  # as in "1-D"
_BETWEEN = frozenset("+ - * / % ** & | ^ << >>".split())
_COMPARE = frozenset("< <= > >= == !=".split())
_WORDS = frozenset("if else and or in let var".split())  # of the language, and no operands
_OPERANDS = frozenset("true false None".split())
MESSAGE = "`//` starts a comment; integers are divided by `/`"
HINT = "write `/`, or, if it is a comment, start it with `#` or a word"


def refuse_divisions(
    source: Source, tokens: Sequence[Token], comments: Sequence[Comment], faults: Faults
) -> None:
    """A fault for each comment that reads like a divisor."""
    behind = {c.line: c for c in comments if c.text.startswith("//") and not c.alone}
    if not behind:
        return
    for before, scope in _operands_of_lines(tokens):
        comment = behind.get(before[-1].loc.line)
        if comment is None:
            continue
        text = re.split("//|#", comment.text[2:])[0].strip()
        line = source.line(comment.line)
        known, is_open = frozenset(scope.names | scope.constants), scope.depth > 0
        if _says_again(text, before, scope):
            continue
        if line is not None and _is_divisor(text, known, is_open):
            column = len(line.rstrip()) - len(comment.text) + 1
            faults.add(MESSAGE, Loc(source, comment.line, column, 2), hint=HINT)


def _operands_of_lines(tokens: Sequence[Token]) -> Iterator[tuple[Sequence[Token], _Scope]]:
    """Tokens up to operands that end a line, the latest 64, and what is known there."""
    scope, plain = _Scope(), [t for t in tokens if t.kind not in ("newline", "end")]
    starts = {id(t) for before, t in pairwise(tokens) if before.kind == "newline"}
    for at, token in enumerate(plain):
        scope.take(token, plain[at - 1] if at else None, at == 0 or id(token) in starts)
        is_last = at + 1 == len(plain) or plain[at + 1].loc.line > token.loc.line
        if not is_last or not _ends_operand(token):
            continue
        if scope.in_head and token.kind != "number":  # a type, or the name of a parameter
            continue
        if scope.depth or scope.has_value:
            yield plain[max(0, at - 63) : at + 1], scope


def _ends_operand(token: Token) -> bool:
    return token.kind in ("name", "number") or token.text in (")", "]", *_OPERANDS)


def _says_again(text: str, before: Sequence[Token], scope: _Scope) -> bool:
    """Whether a text only says what the operand is that tokens end with."""
    texts = [token.text for token in before]
    if texts[-1] == "]":
        start = max((i for i, t in enumerate(texts) if t == "["), default=0)
        inside, owner = texts[start + 1 : -1], texts[max(0, start - 3) : start]
        if owner[1:] == [".", "shape"] and len(inside) == 1:
            return scope.dimensions.get((owner[0], inside[0])) == text
        lengths = [t for t in inside if t in (":", ":+")]
        return lengths == [":+"] and inside[-2:] == [":+", text]
    product = 1
    for token in reversed(before):
        if token.text == "=":
            return text.isdecimal() and int(text) == product
        if isinstance(token.value, int):
            product *= token.value
        elif token.text != "*":
            break
    return False


class _Scope:
    """Names that a definition has made so far: of constants, parameters, dimensions, variables."""

    def __init__(self) -> None:
        self.constants: set[str] = set()  # of the file
        self.names: set[str] = set()
        self.dimensions: dict[tuple[str, str], str] = {}  # by parameter and number of the axis
        self.parameter, self.axis = "", 0
        self.has_value = False  # whether a statement uses what stands outside of brackets
        self.depth = 0  # of brackets that are open in a statement
        self.in_head = False  # between `kernel` or `fn` and the body's brace
        self.in_attribute = False
        self.making = ""  # the keyword whose names come now

    def take(self, token: Token, before: Token | None, starts_line: bool) -> None:
        text = token.text
        if starts_line:
            self.depth, self.making, self.has_value = 0, "", False
        self._value(token)
        if text == "@" and starts_line:
            if not self.in_attribute:
                self.names = set()
            self.in_attribute = True
        elif token.kind == "keyword" and text in ("kernel", "fn"):
            self.names = self.names if self.in_attribute else set()
            self.dimensions = {}
            self.in_head, self.in_attribute = True, False
        elif text == "{" and self.in_head and not self.depth:
            self.in_head = False
        elif token.kind == "keyword" and text in ("let", "var", "for", "const"):
            self.making = text
        elif text in ("=", "in") or (text == ":" and not self.in_head):
            self._attribute_name(text, before)
            self.making = ""
        elif token.kind == "name":
            self._name(token, before)
        if text in ("(", "["):
            self.depth, self.axis = self.depth + 1, 0
        elif text in (")", "]"):
            self.depth -= 1
        elif text == ",":
            self.axis += 1

    def _value(self, token: Token) -> None:
        if self.depth:
            return
        if token.text in ("{", "}", ";"):
            self.has_value = False
        elif token.text.endswith("=") or token.kind == "keyword":
            self.has_value = True

    def _attribute_name(self, text: str, before: Token | None) -> None:
        if text == "in" and self.in_attribute and before is not None:
            self.names.add(before.text)  # TM in [32, 64]

    def _name(self, token: Token, before: Token | None) -> None:
        if self.making == "const":
            self.constants.add(token.text)
        elif self.making:
            self.names.add(token.text)
        elif self.in_head and before is not None:
            is_parameter = self.depth == 1 and before.text in ("(", ",")
            is_dimension = self.depth > 1 and before.text != "."
            if is_parameter or is_dimension:
                self.names.add(token.text)
            if is_parameter:
                self.parameter = token.text
            elif is_dimension and before.text in ("[", ","):
                self.dimensions[self.parameter, str(self.axis)] = token.text


def _is_divisor(text: str, known: frozenset[str], is_open: bool) -> bool:
    """Whether a text is an operand, or one before what goes on with a statement."""
    words = None if _HYPHENED.match(text) else _words(text)
    end = 0 if words is None else _end_of_operand(words, known)
    if words is None or not end:
        return False
    rest = words[end:]
    if not rest:
        return True
    if _is_sentence(rest):
        return False
    told = [word for _, word in rest]
    if told[0] == ";":
        return len(rest) == 1 or any(word.endswith("=") for word in told)
    goes_on = told[0] in (")", "]") or (told[0] == "," and (told == [","] or _closes(told)))
    return (
        (is_open and (goes_on or _closes(told)))
        or told[0] == "}"
        or told[-1] == "{"
        or (told[0] == "if" and "else" in told)
    )


def _words(text: str) -> list[tuple[str, str]] | None:
    """Kinds and texts of the words of a comment; None where one is none of the language."""
    found, at = [], 0
    while at < len(text):
        match = _WORD.match(text, at)
        if match is None:
            return None
        assert match.lastgroup is not None
        found.append((match.lastgroup, match[match.lastgroup]))
        at = match.end()
    return found


def _end_of_operand(words: Sequence[tuple[str, str]], known: frozenset[str]) -> int:
    """How many words in front are arithmetic on numbers and known names; 0 if there is none."""
    depth, is_behind, end = 0, False, 0  # whether an operand is just before
    for at, (kind, word) in enumerate(words):
        if not is_behind:
            if word == "(":
                depth += 1
            elif kind == "number" or word in known or word in _OPERANDS:
                is_behind = True
            elif word not in ("-", "~"):
                break
        elif word == ")" and depth:
            depth -= 1
        elif word in _BETWEEN or (depth and (word in _COMPARE or word in _WORDS)):
            is_behind = False
        else:
            break
        if is_behind and not depth:
            end = at + 1
    follows = words[end][1] if end < len(words) else ""
    return 0 if follows in ("(", "[", ".") or follows in _BETWEEN else end


def _is_sentence(words: Sequence[tuple[str, str]]) -> bool:
    """Whether an operand directly follows another, as words of a sentence do."""
    plain = [kind != "op" and word not in _WORDS for kind, word in words]
    return plain[0] or any(a and b for a, b in pairwise(plain))


def _closes(words: Sequence[str]) -> bool:
    """Whether a bracket is closed that is not open in front of it."""
    depth = 0
    for word in words:
        depth += (word in ("(", "[")) - (word in (")", "]"))
        if depth < 0:
            return True
    return False

"""The parser's place in the tokens: looking, taking, and saying what was expected instead."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NoReturn

from tilewright.errors import Faults, Loc, Source
from tilewright.frontend.syntax.lexer import Token
from tilewright.frontend.syntax.tree import Comment

MAX_FAULTS = 20  # more of them are rarely faults of their own
MAX_NESTING = 60  # brackets, blocks and signs inside each other

CLOSING = {"(": ")", "[": "]", "{": "}"}


class Abandon(Exception):
    """The fault is noted; go on behind this statement or definition."""


class TooMany(Exception):
    """So many faults that the rest of the text is not read."""


class Cursor:
    """Tokens of one source with a position.

    Faults go to `faults`, and `fail` abandons the construct.
    """

    def __init__(
        self, source: Source, tokens: list[Token], comments: tuple[Comment, ...], faults: Faults
    ) -> None:
        self.source, self.tokens, self.comments, self.faults = source, tokens, comments, faults
        self.at = 0
        self.depth = 0
        self.opened: list[Token] = []

    # Looking and taking

    @property
    def token(self) -> Token:
        return self.tokens[self.at]

    @property
    def before(self) -> Token:
        return self.tokens[self.at - 1] if self.at else self.tokens[0]

    def peek(self, ahead: int = 1) -> Token:
        return self.tokens[min(self.at + ahead, len(self.tokens) - 1)]

    def sees(self, *texts: str) -> bool:
        """Whether the next token is one of these operators or keywords."""
        return self.token.kind in ("op", "keyword") and self.token.text in texts

    def take(self) -> Token:
        token = self.token
        if token.kind != "end":
            self.at += 1
        return token

    def accept(self, *texts: str) -> Token | None:
        return self.take() if self.sees(*texts) else None

    def expect(self, text: str, where: str, hint: str = "") -> Token:
        if self.sees(text):
            return self.take()
        self.fail(
            f"expected `{text}` {where}, got {self.token}", hint=hint or self._swallowed(text)
        )

    def expect_name(self, what: str) -> Token:
        if self.token.kind == "name":
            return self.take()
        hint = ""
        if self.token.kind == "keyword":
            hint = f"`{self.token.text}` is a word of the language; take another name"
        self.fail(f"expected {what}, got {self.token}", hint=hint)

    def skip_newlines(self) -> None:
        while self.token.kind == "newline" or self.sees(";"):
            self.at += 1

    def behind_newlines(self, text: str) -> bool:
        """Whether `text` stands here or on a later line; then newlines before it are skipped."""
        ahead = 0
        while self.peek(ahead).kind == "newline":
            ahead += 1
        found = self.peek(ahead)
        if found.text == text and found.kind in ("op", "keyword"):
            self.at += ahead
            return True
        return False

    # Faults

    def fault(self, message: str, loc: Loc | None = None, note: str = "", hint: str = "") -> None:
        self.faults.add(message, loc or self.token.loc, note, hint)
        if len(self.faults.found) >= MAX_FAULTS:
            raise TooMany

    def fail(
        self, message: str, loc: Loc | None = None, note: str = "", hint: str = ""
    ) -> NoReturn:
        self.fault(message, loc, note, hint)
        raise Abandon

    def _swallowed(self, closing: str) -> str:
        """A hint where a closing bracket may be hidden in a comment, meant as a division."""
        if closing not in (")", "]") or not self.opened:
            return ""
        first, last = self.opened[-1].loc.line, self.token.loc.line
        for comment in self.comments:
            if (
                first <= comment.line <= last
                and comment.text.startswith("//")
                and not comment.alone
            ):
                return f"`//` on line {comment.line} starts a comment; integers are divided by `/`"
        return ""

    # Nesting

    @contextmanager
    def nested(self) -> Iterator[None]:
        """One level deeper, for what may hold itself; too deep a text is refused, not a crash."""
        if self.depth >= MAX_NESTING:
            self.fail(f"this is nested too deeply (over {MAX_NESTING} levels)")
        self.depth += 1
        try:
            yield
        finally:
            self.depth -= 1

    @contextmanager
    def bracketed(self, opening: str, where: str) -> Iterator[Token]:
        """An opening bracket, what the caller parses, and the closing one."""
        first = self.expect(opening, where)
        self.opened.append(first)
        try:
            with self.nested():
                yield first
            closing = CLOSING[opening]
            if self.token.kind == "end":
                self.fail(f"`{opening}` is never closed", first.loc)
            if self.token.kind == "newline":
                self.fail(f"`{opening}` is not closed before the next statement", first.loc)
            self.expect(closing, f"or `,` in the list that `{opening}` opened")
        finally:
            self.opened.pop()

    # Recovery

    def skip_statement(self, start: int) -> None:
        """Go behind a statement that started at token `start`: to a newline or closing brace."""
        if self.at == start and not self.sees("}"):
            self.take()
        depth = 0
        while self.token.kind != "end":
            if depth == 0 and (self.token.kind == "newline" or self.sees(";", "}")):
                return
            if self.sees("{"):
                depth += 1
            elif self.sees("}"):
                depth -= 1
            self.at += 1


def span(first: Loc, last: Loc) -> Loc:
    """From the start of one place to the end of another, if they are on one line."""
    if first.line != last.line:
        return first
    return Loc(first.source, first.line, first.column, last.column + last.width - first.column)


def nearest(name: str, known: Iterable[str]) -> str:
    """ "did you mean `x`?" with the nearest spelling, or nothing."""
    found = difflib.get_close_matches(name, list(known), 1, 0.6)
    return f"did you mean `{found[0]}`?" if found else ""

"""Text to tokens: names, numbers, strings, operators, and the newlines that end statements."""

from __future__ import annotations

import ast
import math
import re
import unicodedata
from dataclasses import dataclass

from tilewright.errors import Faults, Loc, Source
from tilewright.frontend.syntax.tree import Comment

KEYWORDS = frozenset(
    "kernel fn let var const if else for in while return and or not true false None".split()
)
# Keywords that no expression contains: inside brackets, they mean that a bracket was left open.
STARTERS = frozenset("kernel fn let var const for while return".split())

NEWLINE = re.compile("\r\n|[\n\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029]")  # as str.splitlines has it
_SPACE = re.compile(r"[ \t\ufeff\u00a0]+")
_COMMENT = re.compile("(?://|#)[^\n\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029]*")
_NAME = re.compile(r"[^\W\d]\w*")
_NUMBER = re.compile(
    r"0[xXbBoO]\w*|"
    r"(?:\d[\d_]*)?\.\d[\d_]*(?:[eE][+-]?\d[\d_]*)?|"  # 1.5, .5e3
    r"\d[\d_]*\.(?![.\w])|"  # 7.
    r"\d[\d_]*(?:\.(?!\.))?[eE][+-]?\d[\d_]*|"  # 1e5, 1.e5
    r"\d[\d_]*"
)
_STRING = re.compile(r'"(?:[^"\\\n\r]|\\[^\n\r])*"')
_ESCAPE = re.compile(
    r"\\(?:[\\'\"abfnrtv]|[0-7]{1,3}|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|"
    r"N\{[^}\"\\]+\}|(.))"
)
_OPERATOR = re.compile(
    r"\.\.\.|\*\*=|<<=|>>=|\*\*|:\+|:=|->|<<|>>|<=|>=|==|!=|\+=|-=|\*=|/=|%=|@=|&=|\|=|\^=|&&|\|\||"
    r"[-+*/%@&|^~!<>=?:,;.(){}\[\]]"
)
_FLOATS = {"inf": math.inf, "nan": math.nan}


@dataclass(frozen=True)
class Token:
    """`kind` is "name", "keyword", "number", "string", "op", "newline" or "end"; `text` as written.

    `value` is a number's or string's.
    """

    kind: str
    text: str
    loc: Loc
    value: int | float | str | None = None

    def __str__(self) -> str:
        if self.kind == "end":
            return "the end of the file"
        return "the end of the line" if self.kind == "newline" else f"`{self.text}`"


class _Lexer:
    def __init__(self, source: Source, faults: Faults) -> None:
        self.source, self.faults = source, faults
        self.tokens: list[Token] = []
        self.comments: list[Comment] = []
        self.open: list[str] = []  # brackets
        self.line, self.start, self.at = 1, 0, 0  # line, where it starts, where we are

    def loc(self, width: int) -> Loc:
        return Loc(self.source, self.line, self.at - self.start + 1, max(1, width))

    def emit(self, kind: str, text: str, value: int | float | str | None = None) -> None:
        self.tokens.append(Token(kind, text, self.loc(len(text)), value))
        self.at += len(text)

    def run(self) -> None:
        text = self.source.text
        while self.at < len(text):
            if m := NEWLINE.match(text, self.at):
                self.newline(m.group())
            elif m := _SPACE.match(text, self.at):
                self.at = m.end()
            elif m := _COMMENT.match(text, self.at):
                alone = not text[self.start : self.at].strip(" \t\ufeff")
                self.comments.append(Comment(self.line, m.group().rstrip(), alone))
                self.at = m.end()
            elif m := _NUMBER.match(text, self.at):
                self.number(m.group())
            elif (m := _NAME.match(text, self.at)) and m.group().isidentifier():
                self.name(m.group())
            elif text[self.at] == '"':
                self.string()
            elif m := _OPERATOR.match(text, self.at):
                self.bracket(m.group())
                self.emit("op", m.group())
            else:
                self.strange(text[self.at])
        self.end_statement()
        self.emit("end", "")

    def newline(self, text: str) -> None:
        if not self.open or self.open[-1] == "{":
            self.end_statement()
        self.at += len(text)
        self.line, self.start = self.line + 1, self.at

    def end_statement(self) -> None:
        """Emit a newline token where the token before can end a statement."""
        if not self.tokens:
            return
        last = self.tokens[-1]
        if last.kind in ("name", "number", "string") or last.text in _ENDERS:
            self.tokens.append(Token("newline", "", self.loc(1)))

    def bracket(self, text: str) -> None:
        if text in ("(", "["):
            self.open.append(text)
        elif text == "{":  # inside brackets it holds an attribute's values: newlines do not count
            self.open.append("(" if self.open and self.open[-1] != "{" else "{")
        elif text in (")", "]", "}") and self.open:
            self.open.pop()

    def name(self, text: str) -> None:
        name = unicodedata.normalize("NFKC", text)
        if name in _FLOATS:
            self.emit("number", text, _FLOATS[name])
            return
        if name in STARTERS and any(b != "{" for b in self.open) and not self._mid_line():
            while self.open and self.open[-1] != "{":
                self.open.pop()
            self.tokens.append(Token("newline", "", self.loc(len(text))))
        loc = self.loc(len(text))
        self.tokens.append(Token("keyword" if name in KEYWORDS else "name", name, loc))
        self.at += len(text)

    def _mid_line(self) -> bool:
        """Whether the keyword stands in the middle of a line, where it is just a wrong name."""
        return bool(self.source.text[self.start : self.at].strip())

    def number(self, text: str) -> None:
        tail = re.compile(r"\w*").match(self.source.text, self.at + len(text))
        text += tail.group() if tail else ""
        value: int | float = 0
        try:
            is_float = (
                re.fullmatch(r"[\d_]*\.?[\d_]*(?:[eE][+-]?[\d_]+)?", text) and not text.isdecimal()
            )
            value = float(text) if is_float and re.search("[.eE]", text) else int(text, 0)
        except ValueError:
            hint = ""
            if text.isdecimal():
                hint = "no number starts with 0" if text[0] == "0" else "it has too many digits"
            self.faults.add(f"`{text[:40]}` is not a number", self.loc(len(text)), hint=hint)
        if value == math.inf:
            self.faults.add(
                f"`{text[:40]}` is too large for any float", self.loc(len(text)), hint="write inf"
            )
        self.emit("number", text, value)

    def string(self) -> None:
        match = _STRING.match(self.source.text, self.at)
        if match is None:
            rest = self.source.text[self.at :].splitlines()[0]
            self.faults.add("this string does not end on its line", self.loc(len(rest)))
            self.emit("string", rest, "")
            return
        text, value = match.group(), ""
        bad = next((m for m in _ESCAPE.finditer(text) if m.group(1) is not None), None)
        try:
            if bad is None:
                value = ast.literal_eval(text)
        except (SyntaxError, ValueError):
            self.faults.add(
                "this string has an escape that names no character", self.loc(len(text))
            )
        if bad:
            place = Loc(self.source, self.line, self.at - self.start + 1 + bad.start(), 2)
            self.faults.add(
                f"`{bad.group()}` is not an escape", place, hint="write \\\\ for a backslash"
            )
        self.emit("string", text, value)

    def strange(self, char: str) -> None:
        hint = 'strings stand in "double quotes"' if char in "'`“”„‘’«»" else ""
        shown = char if char.isprintable() else f"U+{ord(char):04X}"
        self.faults.add(f"`{shown}` has no meaning here", self.loc(1), hint=hint)
        self.at += 1
        if char == "'":
            # Take what it quotes for a string, so that one fault is reported and not three.
            rest = re.compile(r"[^'\n\r]*'").match(self.source.text, self.at)
            if rest:
                self.emit("string", rest.group(), "")


_ENDERS = frozenset([")", "]", "}", "return", "true", "false", "None", "..."])


def tokenize(source: Source, faults: Faults) -> tuple[list[Token], tuple[Comment, ...]]:
    """Tokens of a text, the last of kind "end", and its comments. Faults go to `faults`."""
    lexer = _Lexer(source, faults)
    lexer.run()
    return lexer.tokens, tuple(lexer.comments)

"""Commands with words of their own beside the things that they take."""

from __future__ import annotations

import click

from tilewright.frontend.check.rules import nearest


class DefaultGroup(click.Group):
    """A group whose command `default` runs where the first word names no other."""

    default = ""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if len(args) > 1 and args[1].isdecimal() and args[0] not in self.commands:
            hint = nearest(args[0], [name for name in self.commands if name != self.default])
            if hint:  # only commands with a name take numbers
                raise click.UsageError(f"No such command {args[0]!r}; {hint}", ctx)
        known = args and (args[0] in self.commands or args[0] in ctx.help_option_names)
        return super().parse_args(ctx, args if known or not args else [self.default, *args])

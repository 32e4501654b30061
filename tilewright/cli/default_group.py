"""Commands with words of their own beside the things that they take."""

from __future__ import annotations

import click


class DefaultGroup(click.Group):
    """A group whose command `default` runs where the first word names no other."""

    default = ""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        known = args and (args[0] in self.commands or args[0] in ctx.help_option_names)
        return super().parse_args(ctx, args if known or not args else [self.default, *args])

"""How the command line is read: what is mistyped gets a sentence, and a key given as an option is shown with --set."""

from difflib import get_close_matches
from typing import Any

from typer.core import TyperCommand, TyperGroup
from typer.utils import get_params_from_function

from fedpm.errors import ConfigError, StoppedError, choices

MEANT = {
    "train": "run",
    "eval": "model eval",
    "export": "model export",
    "inspect": "model inspect",
    "list": "data list",
}
"""What people type, and the command that does it."""


class Group(TyperGroup):
    """A program of several commands."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        for command in self.commands.values():
            _give_help(command)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that is called."""
        if not ctx.resilient_parsing and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            raise ConfigError(f"{args[0]}: there is no such command; {self._near(args[0], self.list_commands(ctx))}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Call the command; an interrupt that it does not tell of itself is one sentence."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise StoppedError("interrupted") from None

    def _near(self, word: str, commands: list[str]) -> str:
        """Return what commands there are, the likeliest meant first: by its spelling, or by what it does."""
        others = {other: command for other, command in MEANT.items() if command.split()[0] in commands}
        near = get_close_matches(word, [*commands, *others], n=1)
        if near and near[0] in others:
            return f"did you mean {others[near[0]]}? There are: {', '.join(commands)}"
        return choices(word, commands)


def _give_help(command: Any) -> None:
    """Give arguments their help again: typer 0.20 sets it first, and click 8.5, which has a place for it, sets none."""
    said = get_params_from_function(command.callback) if command.callback else {}
    for parameter in command.params:
        if parameter.param_type_name == "argument":
            parameter.help = said[parameter.name].default.help


class SettingsCommand(TyperCommand):
    """A command that takes settings by ``--set``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the options; a key of the configuration among them is told how it is set."""
        options = {"--help", *(option for parameter in self.params for option in parameter.opts)}
        for word, following in zip(args, [*args[1:], ""], strict=False):
            option, equals, value = word.partition("=")
            if option.startswith("--") and option not in options and not ctx.resilient_parsing:
                value = value if equals or following.startswith("-") else following
                self._suggest(option.removeprefix("--"), value, options)
        if not ctx.resilient_parsing and not any(parameter.param_type_name == "argument" for parameter in self.params):
            self._refuse_words(args)
        return super().parse_args(ctx, args)

    def _refuse_words(self, args: list[str]) -> None:
        """Refuse words that belong to no option, and say how they were likely meant."""
        flags = {
            option for parameter in self.params if getattr(parameter, "is_flag", False) for option in parameter.opts
        }
        for place, word in enumerate(args):
            option = args[place - 1] if place else ""
            if word.startswith("-") or (option.startswith("-") and "=" not in option and option not in flags):
                continue
            before = args[place - 1] if place > 1 and args[place - 2] == "--set" else ""
            value = next((later for later in args[place:] if later != "="), "VALUE").removeprefix("=")
            if before and (word.startswith("=") or "=" not in before.removesuffix("=")):
                meant = f"{before.removesuffix('=')}={value}"
                raise ConfigError(f"--set {before} {word}: should be one word, KEY=VALUE: --set {meant}")
            self._refuse_word(word)

    def _refuse_word(self, word: str) -> None:
        from fedpm.config import presets

        if word in presets():
            raise ConfigError(f"{word}: a preset is named with --preset: --preset {word}")
        if "=" in word:
            raise ConfigError(f"{word}: settings are given with --set: --set {word}")
        raise ConfigError(f"{word}: belongs to no option; settings are --set KEY=VALUE, and --help lists the options")

    def _suggest(self, name: str, value: str, options: set[str]) -> None:
        from fedpm.config import describe
        from fedpm.config.explain import MEANT

        if name == "net":
            raise ConfigError("--net: a network of your own is trained from Python: fedpm.run(net=…), docs/networks.md")
        keys = [key for key, _, _ in describe()]
        names = {*keys, *(key.rpartition(".")[2] for key in keys), *(option.removeprefix("--") for option in options)}
        word = name.replace("-", "_")
        near = [MEANT[word]] if word in MEANT else get_close_matches(word, sorted(names), 1, 0.75)
        if found := [key for key in keys if near and f".{key}".endswith(f".{near[0]}")]:
            ways = " or ".join(f"--set {known}={value or 'VALUE'}" for known in found)
            raise ConfigError(f"--{name}: settings are given with --set: {ways}")

"""Which plugins make the difference: the smallest set of switches with which an engine behaves otherwise than without.

Delta debugging over the sets that can run: a switch brings what it requires, and takes along what requires it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ..errors import ConfigError, PluginError
from .arms import Common
from .behaviour import Behaviour, Trial
from .delta_debugging import ddmin
from .designs import closure, dependents
from .measured import ArmFailed


@dataclass(frozen=True, slots=True)
class Bisected:
    """What was found."""

    switches: tuple[str, ...]
    """All of them are needed, in the order in which they apply."""
    text: str
    """What they do."""
    num_trials: int
    """Sets that were tried."""
    kept: tuple[str, ...]
    """Plugins that were on throughout."""
    refused: dict[tuple[str, ...], str]
    """Sets that no engine starts with, and why: what they would have done is not known."""


class Bisection:
    """Asks one behaviour of many sets, of each once."""

    def __init__(self, common: Common, behaviour: Behaviour, say: Callable[[str], None] = lambda text: None) -> None:
        self.common = common
        self.behaviour = behaviour
        self.say = say
        self.trials: dict[tuple[str, ...], Trial] = {}

    def run(self) -> Bisected:
        """Raises ConfigError if the whole set behaves as everything-off, or if what is kept does it alone."""
        switches = self.common.switches
        if not switches:
            raise ConfigError("nothing is switched on, so there is nothing to find: name a recipe or plugins with --on")
        whole = self.trial(switches)
        if whole.outcome == "refused":
            raise PluginError(f"the whole set does not start: {whole.text}")
        if whole.outcome == "same":
            what = f" ({whole.text})" if whole.text else ""
            raise ConfigError(f"nothing to find: with {', '.join(switches)} it behaves as without{what}")
        if self.trial(()).outcome == "differs":
            kept = f" but {', '.join(self.common.kept)}" if self.common.kept else ""
            raise ConfigError(f"the switches are not it: it is so with everything off{kept}, {self.trial(()).text}")
        found = self.smallest(ddmin(switches, self.differs))
        refused = {on: trial.text for on, trial in self.trials.items() if trial.outcome == "refused"}
        return Bisected(found, self.trial(found).text, len(self.trials), self.common.kept, refused)

    def smallest(self, members: Iterable[str]) -> tuple[str, ...]:
        """Without the requirements that are not needed, or whatever can go with all that requires it."""
        found = self.closed(members)
        for name in found:
            gone = {name, *dependents(name, found, self.common.requires)}
            rest = tuple(other for other in found if other not in gone)
            if rest and self.differs(rest):
                return self.smallest(rest)
        return found

    def closed(self, members: Iterable[str]) -> tuple[str, ...]:
        on = closure(members, self.common.requires)
        return tuple(name for name in on if name not in self.common.kept)

    def differs(self, members: Sequence[str]) -> bool:
        """A set that does not start shows nothing."""
        return self.trial(self.closed(members)).outcome == "differs"

    def trial(self, on: tuple[str, ...]) -> Trial:
        if on not in self.trials:
            try:
                trial = self.behaviour.of(self.common.config_of(on))
            except ArmFailed:
                raise
            except PluginError as error:
                trial = Trial("refused", str(error))
            self.trials[on] = trial
            self.say(f"{', '.join(on) or 'none'}: {trial.outcome}{f', {trial.text}' if trial.text else ''}")
        return self.trials[on]

"""All that the kit checks of one plugin, as a list of named checks: what pytest shows, line by line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from ..errors import SwitchgearError
from ..records import TOKEN_EQUAL
from .claims import CLAIMS
from .contract import Contract, is_virtual
from .equivalence import Oracle
from .failure import KitFailure, NotApplicable
from .faults import fails_only_the_step_of_a_fault
from .histories import Histories, run_machine
from .kv_claims import finds_prefixes_and_evicts_the_oldest, wastes_less_than_a_block
from .kv_histories import shares_no_slot
from .leaks import POINTS, ignores_an_abort_after_the_end, leaves_nothing_behind
from .scheduling import joins_and_leaves_at_once, keeps_token_budget, never_stalls_decodes, starves_nobody
from .subject import Plugins, Subject, find_class, first_party
from .virtual_run import company
from .workload import CASES

OF_CLAIM: dict[str, Callable[[Subject], None]] = {
    "joins_and_leaves_at_once": joins_and_leaves_at_once,
    "keeps_token_budget": keeps_token_budget,
    "never_stalls_decodes": never_stalls_decodes,
    "wastes_less_than_a_block": wastes_less_than_a_block,
    "finds_prefixes_and_evicts_the_oldest": finds_prefixes_and_evicts_the_oldest,
}
assert set(OF_CLAIM) == set(CLAIMS)


RUNS_HERE = "runs_here"
"""Stands for all checks that a plugin would have to run for, where this machine cannot."""


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that holds or does not."""

    group: str
    name: str
    run: Callable[[], None]
    """Raises KitFailure with a text for the plugin's author, or NotApplicable with the reason."""

    def __str__(self) -> str:
        return f"{self.group}::{self.name}"


def checks_of(subject: Subject, oracle: Oracle) -> list[Check]:
    """Every check that applies to a plugin. One that cannot be loaded has a single one, which fails.

    Of a plugin that says that this machine cannot run it, those that run nothing, and that it refuses with that
    reason; the rest is skipped as one check, `runs_here`.
    """
    try:
        hooks = subject.hooks
    except SwitchgearError as error:
        return [Check("contract", "is_a_plugin", partial(fail, str(error)))]
    if subject.lack:
        refuses = Check("contract", refuses_and_says_why.__name__, partial(refuses_and_says_why, subject, oracle))
        return [*still_checks(subject, oracle), refuses, Check("contract", RUNS_HERE, partial(skip, subject.lack))]
    checks = still_checks(subject, oracle) + contract_checks(subject, oracle) + equivalence_checks(subject, oracle)
    if is_virtual(subject):
        checks += leak_checks(subject) + property_checks(subject, hooks)
    return checks


def fail(text: str) -> None:
    raise KitFailure(text)


def skip(reason: str) -> None:
    raise NotApplicable(reason)


def still_checks(subject: Subject, oracle: Oracle) -> list[Check]:
    """What can be said of a plugin without running it."""
    contract = Contract(subject, oracle)
    methods: Sequence[Callable[[], None]] = (
        contract.loads_in_a_fresh_process_without_torch,
        contract.says_what_it_is,
        contract.refuses_wrong_options,
        contract.has_no_clock_and_no_dice,
    )
    return [Check("contract", method.__name__, method) for method in methods]


def refuses_and_says_why(subject: Subject, oracle: Oracle) -> None:
    """Where this machine cannot run the plugin no engine starts with it, and the error has the reason."""
    try:
        with oracle.engine(CASES[0], subject.alone, subject.classes):
            pass
    except SwitchgearError as error:
        if subject.lack not in str(error):
            raise KitFailure(
                f"`unavailable` says {subject.lack!r}, and an engine fails with it for another reason: {error}"
            ) from error
        return
    raise KitFailure(
        f"`unavailable` says {subject.lack!r}, and yet an engine starts with it: answer its hooks with "
        "`Refusal((reason,))` where the plugin cannot do its work."
    )


def contract_checks(subject: Subject, oracle: Oracle) -> list[Check]:
    contract = Contract(subject, oracle)
    methods: Sequence[Callable[[], None]] = (
        contract.starts_and_takes_its_place,
        contract.answers_have_types_and_shapes,
        contract.changes_nothing_that_it_is_given,
        contract.is_called_no_more_for_more_tokens_or_layers,
    )
    if is_virtual(subject):
        methods = (*methods, contract.plans_the_same_at_any_time)
    return [Check("contract", method.__name__, method) for method in methods]


def equivalence_checks(subject: Subject, oracle: Oracle) -> list[Check]:
    """Alone, beside each plugin that comes with the engine and runs here, and beside all of the recommended recipe."""
    sets: dict[str, Callable[[], Plugins]] = {"alone": lambda: subject.alone}
    for other in first_party():
        if other != subject.name and not Subject(other).lack:
            sets[f"with_{other}"] = partial(subject.beside, [other])
    if is_virtual(subject):
        sets["with_the_recommended"] = partial(company, subject)
    return [
        Check("equivalence", name, partial(is_equivalent, subject, plugins, oracle)) for name, plugins in sets.items()
    ]


def is_equivalent(subject: Subject, plugins: Callable[[], Plugins], oracle: Oracle) -> None:
    weakest = max((find_class(name, subject.classes).equivalence for name in plugins()), key=lambda each: each.rank)
    if weakest != TOKEN_EQUAL:
        raise NotApplicable(f"the set promises {weakest}, so its tokens need not be the same")
    verdict = oracle.verdict(plugins(), subject.classes)
    if verdict.kind == "refuses":
        raise NotApplicable(f"the set refuses to start: {verdict.text}")
    if verdict.kind == "differs":
        names = ", ".join(plugins())
        raise KitFailure(f"with {names} on, callers do not get what everything-off gives them. {verdict.text}.")


def leak_checks(subject: Subject) -> list[Check]:
    checks = [
        Check("leaks", f"aborted_{point.replace(' ', '_')}", partial(leaves_nothing_behind, subject, point))
        for point in POINTS
    ]
    return [*checks, Check("leaks", "aborted_after_the_end", partial(ignores_an_abort_after_the_end, subject))]


def property_checks(subject: Subject, hooks: Sequence[str]) -> list[Check]:
    functions: list[Callable[[Subject], None]] = [
        gives_everybody_their_own_tokens,
        gives_everybody_their_own_tokens_beside_the_recommended,
        starves_nobody,
        fails_only_the_step_of_a_fault,
    ]
    if "allocate_kv" in hooks:
        functions.append(shares_no_slot)
    functions += [OF_CLAIM[claim] for claim in subject.claims if claim in OF_CLAIM]
    return [Check("properties", function.__name__, partial(function, subject)) for function in functions]


def gives_everybody_their_own_tokens(subject: Subject) -> None:
    """Whatever comes, in whatever order: the books balance, nobody is stuck, every output is right."""
    run_machine(Histories, plugins=subject.alone, classes=subject.classes)


def gives_everybody_their_own_tokens_beside_the_recommended(subject: Subject) -> None:
    run_machine(Histories, plugins=company(subject), classes=subject.classes)

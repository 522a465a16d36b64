"""Structured outputs on a real, random model: whatever it would rather say, what comes out keeps to the structure."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from switchgear import LLM, SamplingParams
from switchgear.core.errors import PluginError, RequestError
from switchgear.core.records import IntArray, Vocabulary
from switchgear.core.sampling_params import Structure
from switchgear.plugins.structured_output import StructuredOutput, StructureMasks

from ..core.engine.drafting import drafting

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "minItems": 1, "maxItems": 3},
        "address": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/address"}]},
    },
    "required": ["name", "age", "tags", "address"],
    "additionalProperties": False,
    "$defs": {
        "address": {
            "type": "object",
            "properties": {"zip": {"type": "string", "pattern": "^[0-9]{5}$"}, "is_home": {"type": "boolean"}},
            "required": ["zip", "is_home"],
            "additionalProperties": False,
        }
    },
}
PLATE = r"[A-Z]{1,3}-[A-Z]{2} [0-9]{1,4}"
CHOICES = ["yes", "no", "it depends", 'a "quoted" one', "J\u00e4", "yesterday"]
SUM = """
start: product ("+" product)*
product: NUMBER ("*" NUMBER)*
NUMBER: /[1-9][0-9]{0,3}/
"""
PROMPTS: list[str | Sequence[int]] = ["The switch", "a", [5, 6, 7, 8, 9]]


def is_person(text: str) -> bool:
    value = json.loads(text)
    address = value["address"]
    return (
        list(value) == ["name", "age", "tags", "address"]
        and isinstance(value["name"], str)
        and 1 <= len(value["name"]) <= 8
        and type(value["age"]) is int
        and 0 <= value["age"] <= 120
        and 1 <= len(value["tags"]) <= 3
        and set(value["tags"]) <= {"a", "b"}
        and (
            address is None
            or (re.fullmatch("[0-9]{5}", address["zip"]) is not None and type(address["is_home"]) is bool)
        )
    )


def is_sum(text: str) -> bool:
    return re.fullmatch(r"[1-9][0-9]{0,3}([+*][1-9][0-9]{0,3})*", text) is not None


KEEPS = {
    "json_schema": (Structure("json_schema", json.dumps(PERSON)), is_person),
    "json_object": (Structure("json_object"), lambda text: isinstance(json.loads(text), dict)),
    "regex": (Structure("regex", PLATE), lambda text: re.fullmatch(PLATE, text) is not None),
    "choice": (Structure("choice", json.dumps(CHOICES)), CHOICES.__contains__),
    "grammar": (Structure("grammar", SUM), is_sum),
}


def engine(model: Path, *classes: type, options: Mapping[str, Any] | None = None, **limits: Any) -> LLM:
    plugins: dict[str, Mapping[str, Any]] = {"structured_output": options or {}}
    plugins |= {str(cls.name): {} for cls in classes}  # type: ignore[attr-defined]
    limits = {"max_model_len": 400, "max_num_seqs": 32, **limits}
    return LLM(str(model), dtype="float64", plugins=plugins, plugin_classes=[StructuredOutput, *classes], **limits)


def asked(structure: Structure, **options: Any) -> SamplingParams:
    return SamplingParams(**{"max_tokens": 300, "seed": 1, "structure": structure, **options})


@pytest.fixture(scope="module")
def llm(tiny_model: Path) -> Iterator[LLM]:
    with engine(tiny_model) as llm:
        yield llm
        assert llm.audit() == []
        assert masks_of(llm).held == {}


def masks_of(llm: LLM) -> StructureMasks:
    [plugin] = [plugin.instance for plugin in llm._engine.parts.registry.plugins if plugin.name == "structured_output"]
    assert isinstance(plugin, StructuredOutput)
    return plugin.masks


# -- what comes out -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KEEPS)
def test_every_output_that_ends_keeps_to_its_structure(llm: LLM, kind: str) -> None:
    structure, keeps = KEEPS[kind]
    params = [asked(structure, temperature=0), *(asked(structure, seed=seed, n=2) for seed in range(8))]
    choices = [choice for result in llm.generate(["Hello"] * len(params), params) for choice in result.choices]
    texts = [choice.text for choice in choices if choice.finish_reason == "stop"]
    assert [text for text in texts if not keeps(text)] == []
    assert len(texts) >= 12
    assert {choice.finish_reason for choice in choices} <= {"stop", "length"}
    # both outputs of a request are held to the structure, and are two outputs
    assert len(set(texts)) > 1


def test_what_is_cut_off_is_the_beginning_of_what_would_have_come(llm: LLM) -> None:
    [whole] = llm.generate("Hello", asked(KEEPS["json_schema"][0]))
    [cut] = llm.generate("Hello", asked(KEEPS["json_schema"][0], max_tokens=9))
    assert (whole.finish_reason, cut.finish_reason) == ("stop", "length")
    assert cut.token_ids == whole.token_ids[:9]


def test_a_structure_only_takes_tokens_away(llm: LLM) -> None:
    """What keeps to a narrower structure already comes out of it unchanged, to the token."""
    [wide] = llm.generate("Hello", asked(Structure("regex", "[ -~]*"), temperature=0, max_tokens=30))
    narrow = "".join(f"[{re.escape(character)}#]" for character in wide.text[:10]) + "[ -~]*"
    [narrowed] = llm.generate("Hello", asked(Structure("regex", narrow), temperature=0, max_tokens=30))
    assert narrowed.token_ids == wide.token_ids and len(wide.token_ids) == 30


def test_requests_without_a_structure_notice_nothing(llm: LLM, tiny_model: Path) -> None:
    plain = [SamplingParams(max_tokens=20, seed=seed, n=2, logprobs=2) for seed in range(3)]
    with LLM(str(tiny_model), dtype="float64", plugins={}, max_model_len=400, max_num_seqs=32) as off:
        expected = [choice.token_ids for result in off.generate(PROMPTS, plain) for choice in result.choices]
    mixed = [*plain, asked(KEEPS["json_schema"][0])]
    results = llm.generate([*PROMPTS, "Hello"], mixed)[:3]
    assert [choice.token_ids for result in results for choice in result.choices] == expected


def test_company_changes_no_token(llm: LLM) -> None:
    params = [asked(structure, seed=seed, max_tokens=60) for seed, (structure, _) in enumerate(KEEPS.values())]
    alone = [llm.generate("Hello", one)[0].token_ids for one in params]
    together = [result.token_ids for result in llm.generate(["Hello"] * len(params), params)]
    assert together == alone


def test_preemption_loses_neither_place_nor_token(tiny_model: Path) -> None:
    params = [asked(KEEPS["json_schema"][0], seed=seed, max_tokens=40, n=2) for seed in range(4)]
    prompts = [list(range(3 + seed, 23 + seed)) for seed in range(4)]
    plugins: dict[str, Any] = {"continuous_batching": {}, "paged_kv": {"block_size": 4}, "structured_output": {}}
    outputs, num_preempted = [], []
    for num_tokens in (4 * 128, 80):
        with LLM(
            str(tiny_model),
            dtype="float64",
            plugins=plugins,
            max_model_len=64,
            kv_bytes=num_tokens * 2 * 2 * 2 * 16 * 8,
        ) as llm:
            results = llm.generate(prompts, params)
            outputs.append([(choice.token_ids, choice.finish_reason) for each in results for choice in each.choices])
            num_preempted.append(llm._engine.driver.num_preempted)
            assert llm.audit() == [] and masks_of(llm).held == {}
    assert num_preempted[0] == 0 < num_preempted[1]
    assert outputs[0] == outputs[1]


# -- drafts ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KEEPS)
def test_drafts_change_no_token_and_are_masked_at_each_position(llm: LLM, tiny_model: Path, kind: str) -> None:
    """Drafts that are right, that leave the structure after two tokens, and that go on after its end."""
    structure, keeps = KEEPS[kind]
    params = [asked(structure, seed=seed, max_tokens=60, temperature=seed % 2) for seed in range(4)]
    expected = [llm.generate("Hello", one)[0].token_ids for one in params]
    num_prompt = len(llm.generate("Hello", params[0])[0].prompt_token_ids)

    def next_tokens(tokens: IntArray, count: int) -> Sequence[int]:
        so_far = tuple(tokens[num_prompt:].tolist())
        known = next(output for output in expected if output[: len(so_far)] == so_far)
        right = list(known[len(so_far) :])[:count]
        if len(so_far) % 3 == 1:
            right[2:] = [41]
        return [*right, 2, 7, 7][:count]

    with engine(tiny_model, drafting(next_tokens, 4)) as drafted:
        results = drafted.generate(["Hello"] * len(params), params)
        rounds = drafted._engine.choosing.proposer.value.rounds  # type: ignore[union-attr]
    assert [result.token_ids for result in results] == expected
    assert all(keeps(result.text) for result in results if result.finish_reason == "stop")
    accepted, proposed = sum(each[2] for each in rounds), sum(each[1] for each in rounds)
    assert 0 < accepted < proposed


# -- the end --------------------------------------------------------------------------------------------------------


def test_nothing_but_the_end_follows_a_complete_structure(llm: LLM) -> None:
    [result] = llm.generate("Hello", asked(Structure("choice", '["yes"]')))
    assert (result.text, result.finish_reason, result.token_ids[-1]) == ("yes", "stop", 2)


def test_a_structure_that_ends_before_min_tokens_is_an_error_of_its_own_request(llm: LLM) -> None:
    params = [asked(Structure("choice", '["yes"]'), min_tokens=40), asked(Structure("regex", "[ab]*"), min_tokens=40)]
    short, long = llm.generate(["Hello", "Hello"], params)
    assert "no token is allowed at output position" in short.error and "min_tokens" in short.error
    assert len(long.token_ids) >= 40 and re.fullmatch("[ab]*", long.text)


def test_ignore_eos_is_refused() -> None:
    with pytest.raises(RequestError, match="ignore_eos must be false with a structure"):
        SamplingParams(structure=Structure("json_object"), ignore_eos=True)


def test_an_aborted_request_leaves_nothing_behind(llm: LLM) -> None:
    stream = llm.stream("Hello", asked(Structure("regex", "a{80}"), n=3))
    next(stream)
    assert len(masks_of(llm).held) == 3
    stream.close()
    assert masks_of(llm).held == {}


# -- white space ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("most", [0, 1, 20])
def test_white_space_between_the_parts_is_bounded(tiny_model: Path, most: int) -> None:
    schema = {"type": "array", "items": {"type": "integer"}, "minItems": 3, "maxItems": 5}
    structure = Structure("json_schema", json.dumps(schema))
    with engine(tiny_model, options={"max_whitespace": most}) as llm:
        texts = [llm.generate("Hello", asked(structure, seed=seed))[0].text for seed in range(6)]
    longest = max(len(run) for text in texts for run in re.findall(r"\s*", text))
    assert longest <= most and (most == 0 or longest > 0)


# -- refusals -------------------------------------------------------------------------------------------------------

REFUSED = [
    (Structure("json_schema", '{"not": {"type": "string"}}'), r'Unimplemented keys: \["not"\]'),
    (Structure("json_schema", '{"type": "object", "properties": {"a": {"contains": {}}}}'), '"contains"'),
    (Structure("json_schema", '{"type": "string", "format": "telephone"}'), "Unknown format: telephone"),
    (Structure("json_schema", '{"type": "string", "pattern": "(?=a)b"}'), "look-ahead .* is not supported"),
    (Structure("json_schema", '{"$ref": "https://example.org/schema"}'), "https://example.org/schema"),
    (Structure("json_schema", '{"type": "integer", "minimum": 3, "maximum": 2}'), "Unsatisfiable"),
    (Structure("json_schema", "[]"), "a JSON schema is an object"),
    (Structure("json_schema", "{"), "its text is not JSON"),
    (Structure("json_schema", '{"items":' * 5000 + "{}" + "}" * 5000), "nested too deeply|recursion limit"),
    (Structure("regex", "(?=a)b"), "look-ahead .* is not supported"),
    (Structure("regex", "("), "unclosed group"),
    (Structure("choice", "yes, no"), "its text is not JSON"),
    (Structure("choice", "[]"), "a JSON list of strings"),
    (Structure("choice", '["a", ""]'), "none of them empty"),
    (Structure("grammar", 'start: missing "a"'), 'unknown name: "missing"'),
    (Structure("grammar", 'start: "a"' + "\n" * 1000), "at most 1000 lines"),
]


@pytest.mark.parametrize(("structure", "reason"), REFUSED, ids=[str(number) for number in range(len(REFUSED))])
def test_what_cannot_be_kept_to_is_refused_at_the_door_with_the_reason(
    llm: LLM, structure: Structure, reason: str
) -> None:
    with pytest.raises(RequestError, match=reason) as caught:
        llm.generate("Hello", asked(structure))
    text = str(caught.value)
    assert text.startswith(f"the structure ({structure.kind}) cannot be kept to: ") and "\n" not in text
    assert len(text) < 300


def test_without_the_plugin_a_request_is_told_what_to_switch_on(tiny_model: Path) -> None:
    with (
        LLM(str(tiny_model), plugins={}) as llm,
        pytest.raises(RequestError, match=r"structure \(regex\): switch on structured_output"),
    ):
        llm.generate("Hello", asked(Structure("regex", "a")))


def test_a_model_without_an_end_of_text_is_refused(tmp_path: Path) -> None:
    from switchgear.core.testing.tiny import make_tiny_model

    model = make_tiny_model(tmp_path / "model")
    for name, key in (
        ("config", "eos_token_id"),
        ("generation_config", "eos_token_id"),
        ("tokenizer_config", "eos_token"),
    ):
        path = model / f"{name}.json"
        content = json.loads(path.read_text())
        del content[key]
        path.write_text(json.dumps(content))
    with pytest.raises(PluginError, match="this model has no end-of-text token"):
        engine(model)


def test_without_the_library_the_plugin_says_what_to_install(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(PluginError, match=r"pip install 'switchgear\[grammar\]'"):
        engine(tiny_model)


# -- masks alone ----------------------------------------------------------------------------------------------------

LETTERS = Vocabulary((b"a", b"b", b"ab", b"", b"<end>", b"<stop>", b"\xc3", b"\xa4"), frozenset({4, 5}))
NOTHING: IntArray = np.empty(0, dtype=np.int64)


def letters(**options: int) -> StructureMasks:
    return StructureMasks(StructuredOutput.Config(**options), LETTERS, [4, 5], clock=lambda: 0.0)


def allowed(masks: StructureMasks, row: int = 0, draft: Sequence[int] = ()) -> list[int]:
    """Ids allowed behind the whole draft."""
    mask = masks.mask(np.array([row]), (np.array(draft, dtype=np.int64),), np.array([len(draft)]))
    assert mask is not None
    return np.flatnonzero(mask[0]).tolist()


def test_the_end_is_allowed_where_the_text_may_end_and_alone_where_it_must() -> None:
    masks = letters()
    masks.begin(0, Structure("regex", "a(b(a|\u00e4))?"))
    assert allowed(masks) == [0, 2]
    masks.advance(0, (0,))
    assert allowed(masks) == [1, 4, 5]
    masks.advance(0, (1, 6))
    assert allowed(masks) == [7]
    masks.advance(0, (7,))
    assert allowed(masks) == [4, 5]


def test_a_draft_is_followed_without_moving_the_row() -> None:
    masks = letters()
    masks.begin(0, Structure("regex", "aba"))
    assert [allowed(masks, draft=draft) for draft in ([], [0], [0, 1], [2], [2, 0])] == [[0, 2], [1], [0], [0], [4, 5]]
    everything = list(range(8))
    assert allowed(masks, draft=[1]) == everything, "nobody gets behind a token that is not allowed"
    assert allowed(masks, draft=[2, 0, 4, 0]) == everything
    assert allowed(masks) == [0, 2]


def test_rows_without_a_structure_are_free() -> None:
    masks = letters()
    rows, drafts = np.array([3, 0]), (NOTHING, NOTHING)
    assert masks.mask(rows, drafts, np.zeros(2, dtype=np.int64)) is None
    masks.begin(0, Structure("regex", "a"))
    mask = masks.mask(rows, drafts, np.zeros(2, dtype=np.int64))
    assert mask is not None and mask.tolist() == [[True] * 8, [True] + [False] * 7]
    masks.advance(3, (1,))
    masks.drop(np.array([0, 3]))
    assert masks.mask(rows, drafts, np.zeros(2, dtype=np.int64)) is None


def test_a_row_that_cannot_be_followed_allows_nothing_and_its_structure_is_compiled_anew() -> None:
    masks = letters()
    structure = Structure("regex", "ab")
    masks.begin(0, structure)
    masks.advance(0, (1,))
    assert allowed(masks) == [] and structure not in masks.compiled
    masks.begin(1, structure)
    assert allowed(masks, row=1) == [0, 2]


def test_the_least_recently_used_structure_is_forgotten() -> None:
    masks = letters(cache_size=2)
    one, two, three = (Structure("regex", "a" * count) for count in (1, 2, 3))
    for structure in (one, two, one, three, one):
        masks.check_structure(structure)
    assert list(masks.compiled) == [three, one] and masks.counts.num_compiled == 3


def test_a_long_chain_of_rules_compiles_on_a_stack_of_its_own() -> None:
    chain = "\n".join(["start: r0", *(f"r{number}: r{number + 1}" for number in range(900)), 'r900: "a"'])
    masks = letters()
    masks.begin(0, Structure("grammar", chain))
    assert allowed(masks) == [0]


def test_stats_tell_what_a_mask_costs(tiny_model: Path) -> None:
    with engine(tiny_model) as llm:
        assert set(llm.stats()["structured_output"].values()) == {0.0}
        [result] = llm.generate("Hello", asked(KEEPS["regex"][0]))
        stats = llm.stats()["structured_output"]
    assert stats["masks"] == len(result.token_ids) and stats["compiled"] == stats["rows"] == 1
    assert (
        stats["seconds_per_mask"] == pytest.approx(stats["mask_seconds"] / stats["masks"]) and stats["mask_seconds"] > 0
    )

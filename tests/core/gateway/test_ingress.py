"""The chain of stages at the door: entered in config order, left in reverse, each exactly once, however it ends."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from switchgear import LLM
from switchgear.core.config import PluginConfig
from switchgear.core.errors import RequestError
from switchgear.core.hooks import hookimpl
from switchgear.core.records import (
    TOKEN_EQUAL,
    Continue,
    IngressAnswer,
    IngressRequest,
    Outcome,
    Reject,
    Respond,
    Rewrite,
)

from .stages import GREEDY, MESSAGES, PROMPT, completion, journal, make, outcomes, requests, stage


@pytest.fixture(scope="module")
def plain(tiny_model: Path) -> Iterator[LLM]:
    with make(tiny_model) as llm:
        yield llm


# -- in and out -----------------------------------------------------------------------------------------------------


def test_in_config_order_and_out_in_reverse(tiny_model: Path, plain: LLM) -> None:
    with make(tiny_model, stage("z"), stage("a"), stage("m")) as llm:
        [result] = llm.generate(PROMPT, GREEDY)
    assert result.token_ids == plain.generate(PROMPT, GREEDY)[0].token_ids
    assert journal == [
        ("enter", "z"),
        ("enter", "a"),
        ("enter", "m"),
        ("leave", "m"),
        ("leave", "a"),
        ("leave", "z"),
    ]


def test_a_stage_sees_the_request_and_how_it_ended(tiny_model: Path) -> None:
    with make(tiny_model, stage("a")) as llm:
        [result] = llm.chat(MESSAGES, replace(GREEDY, n=2))
    [request] = requests
    assert isinstance(request.prompt, str) and request.prompt.startswith("<|im_start|>user\nHello")
    assert request.messages == tuple(MESSAGES)
    assert request.sampling["max_tokens"] == 6 and request.sampling["n"] == 2
    assert request.id == result.request_id and request.tenant == ""
    [outcome] = outcomes
    assert outcome.kind == "finished" and outcome.completion is not None
    assert outcome.completion.texts == tuple(choice.text for choice in result.choices)
    assert outcome.completion.token_ids == tuple(choice.token_ids for choice in result.choices)
    assert outcome.completion.finish_reasons == ("length", "length")


def test_leave_runs_when_the_request_ends_and_not_when_the_last_one_does(tiny_model: Path) -> None:
    with make(tiny_model, stage("a")) as llm:
        stream = llm.stream(PROMPT, GREEDY)
        assert journal == []
        next(stream)
        assert journal == [("enter", "a")]
        list(stream)
    assert journal == [("enter", "a"), ("leave", "a")]


def test_an_abandoned_request_leaves_once(tiny_model: Path) -> None:
    with make(tiny_model, stage("a")) as llm:
        stream = llm.stream(PROMPT, GREEDY)
        next(stream)
        stream.close()
        assert journal == [("enter", "a"), ("leave", "a")]
        assert [outcome.kind for outcome in outcomes] == ["aborted"]
        assert llm.audit() == []


def test_closing_the_engine_leaves_every_stage(tiny_model: Path) -> None:
    llm = make(tiny_model, stage("a"))
    streams = [llm.stream(PROMPT, GREEDY) for _ in range(3)]
    for stream in streams[:2]:
        next(stream)
    llm.close()
    assert journal == [("enter", "a")] * 2 + [("leave", "a")] * 2
    for stream in streams:
        stream.close()
    assert len(journal) == 4


def test_a_request_that_fails_leaves_with_its_error(tiny_model: Path) -> None:
    class Breaks:
        """Its executor does not work."""

        name = "breaks"
        equivalence = TOKEN_EQUAL

        class Config(PluginConfig):
            pass

        def __init__(self, config: Config) -> None:
            pass

        @hookimpl
        def execute(self, inner: Any) -> Any:
            def submit(batch: object) -> int:
                raise OSError("the machine is gone")

            inner.submit = submit
            return inner

    with make(tiny_model, stage("a"), Breaks) as llm:
        [result] = llm.generate(PROMPT, GREEDY)
    assert result.error == "plugin 'breaks' failed in submit: raised OSError: the machine is gone"
    assert outcomes == [Outcome("error", error=result.error)]


# -- answers --------------------------------------------------------------------------------------------------------


def test_respond_ends_the_chain_and_asks_no_engine(tiny_model: Path) -> None:
    responds = stage("cache", lambda request: Respond(completion("from the cache")))
    with make(tiny_model, stage("first"), responds, stage("never")) as llm:
        [result] = llm.generate(PROMPT, GREEDY)
        assert llm._engine.num_steps == 0
        [chunk] = llm.stream(PROMPT, GREEDY)
    assert (result.text, result.token_ids, result.finish_reason) == ("from the cache", (7, 8), "stop")
    assert (chunk.text, chunk.finish_reason) == ("from the cache", "stop") and chunk.result is not None
    once = [("enter", "first"), ("enter", "cache"), ("leave", "cache"), ("leave", "first")]
    assert journal == once * 2
    assert [outcome.kind for outcome in outcomes] == ["finished"] * 4
    assert outcomes[0].completion == completion("from the cache")


@pytest.mark.parametrize("texts", [(), ("one",), ("one", "two", "three", "four")])
def test_a_response_with_another_number_of_outputs_is_a_fault(tiny_model: Path, texts: tuple[str, ...]) -> None:
    with (
        make(tiny_model, stage("cache", lambda request: Respond(completion(*texts)))) as llm,
        pytest.raises(RequestError, match=rf"^plugin 'cache' failed in enter: .* responded with {len(texts)} outputs"),
    ):
        llm.generate(PROMPT, replace(GREEDY, n=3))


def test_reject_is_an_error_with_its_sentence(tiny_model: Path, plain: LLM) -> None:
    def guard(request: IngressRequest) -> IngressAnswer:
        return Reject(429, "too many requests: try again in a minute") if request.prompt == (9,) else Continue()

    with make(tiny_model, stage("first"), stage("guard", guard), stage("never")) as llm:
        with pytest.raises(RequestError, match=r"^too many requests: try again in a minute$"):
            llm.generate([9], GREEDY)
        assert journal == [("enter", "first"), ("enter", "guard"), ("leave", "guard"), ("leave", "first")]
        assert outcomes == [Outcome("rejected", error="too many requests: try again in a minute")] * 2
        assert llm.generate(PROMPT, GREEDY)[0].token_ids == plain.generate(PROMPT, GREEDY)[0].token_ids


def test_a_rejected_prompt_takes_its_batch_with_it_and_nothing_stays(tiny_model: Path) -> None:
    def guard(request: IngressRequest) -> IngressAnswer:
        return Reject(403, "no") if request.prompt == (9,) else Continue()

    with make(tiny_model, stage("guard", guard)) as llm:
        with pytest.raises(RequestError, match=r"^no$"):
            llm.generate([PROMPT, [9], PROMPT], GREEDY)
        assert journal == [("enter", "guard"), ("enter", "guard"), ("leave", "guard"), ("leave", "guard")]
        assert [outcome.kind for outcome in outcomes] == ["rejected", "aborted"]
        llm._engine.step()
        assert llm.audit() == [] and len(llm._engine.requests) == 0


@pytest.mark.parametrize("prompt", ["The machine", (20, 21, 22)])
def test_a_rewritten_prompt_is_what_runs(tiny_model: Path, plain: LLM, prompt: str | tuple[int, ...]) -> None:
    rewrites = stage("rewrites", lambda request: Rewrite(replace(request, prompt=prompt)))
    with make(tiny_model, rewrites, stage("next")) as llm:
        [result] = llm.generate(PROMPT, GREEDY)
    [expected] = plain.generate([prompt], GREEDY)
    assert (result.prompt_token_ids, result.token_ids) == (expected.prompt_token_ids, expected.token_ids)
    assert [request.prompt for request in requests] == [tuple(PROMPT), prompt]


def test_a_rewritten_conversation_gets_no_second_beginning(model_with_bos: Path) -> None:
    rewrites = stage("rewrites", lambda request: Rewrite(replace(request, prompt=str(request.prompt) + "Sure: ")))
    with make(model_with_bos, rewrites) as llm:
        [result] = llm.chat(MESSAGES, GREEDY)
        text = "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\nSure: "
        assert list(result.prompt_token_ids) == llm.tokenizer.encode(text, add_special=False)
        [result] = llm.generate("Hello", GREEDY)
        assert list(result.prompt_token_ids) == llm.tokenizer.encode("HelloSure: ")


def test_rewritten_options_are_what_counts(tiny_model: Path) -> None:
    def shorten(request: IngressRequest) -> IngressAnswer:
        return Rewrite(replace(request, sampling={**request.sampling, "max_tokens": 2, "n": 2}))

    with make(tiny_model, stage("shorten", shorten)) as llm:
        [result] = llm.generate(PROMPT, GREEDY)
    assert [len(choice.token_ids) for choice in result.choices] == [2, 2]


def test_a_rewritten_tenant_reaches_the_engine(tiny_model: Path) -> None:
    def name(request: IngressRequest) -> IngressAnswer:
        return Rewrite(replace(request, tenant="red", priority=7))

    with make(tiny_model, stage("name", name)) as llm:
        stream = llm.stream(PROMPT, GREEDY)
        next(stream)
        [sequence] = llm._engine.requests
        assert (sequence.tenant, sequence.priority) == ("red", 7)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"prompt": ()}, "the prompt is empty"),
        ({"prompt": (700,)}, "token id 700 is out of range"),
        ({"prompt": "\ud800"}, "the text has a lone surrogate"),
        ({"sampling": {"max_tokens": 0}}, "max_tokens must be"),
        ({"sampling": {"max_tokens": 100}}, "together exceed max_model_len"),
    ],
)
def test_a_request_rewritten_to_nonsense_is_refused_and_leaves(
    tiny_model: Path, change: dict[str, Any], problem: str
) -> None:
    with make(tiny_model, stage("rewrites", lambda request: Rewrite(replace(request, **change)))) as llm:
        with pytest.raises(RequestError, match=problem):
            llm.generate(PROMPT, GREEDY)
        assert journal == [("enter", "rewrites"), ("leave", "rewrites")]
        assert outcomes[0].kind == "rejected" and problem in outcomes[0].error

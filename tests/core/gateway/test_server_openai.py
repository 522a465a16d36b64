"""The `openai` SDK against a real server: what a team gets that points its clients here."""

from __future__ import annotations

import base64
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
from openai import OpenAI
from openai.types.chat import ChatCompletionMessageParam
from switchgear.core.gateway.keys import line_of, new_key

from .served import Served, serving

KEY, ADMIN = new_key(), new_key()
MODEL = "tiny"
QUESTION: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Who are you?"}]


@pytest.fixture(scope="module")
def served(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text(f"{line_of(KEY, 'blue')}\n{line_of(ADMIN, 'ops', is_admin=True)}\n")
    with serving(
        tiny_model, "--api-keys", str(keys), "--served-model-name", MODEL, "--max-open-requests", "2"
    ) as served:
        yield served


@pytest.fixture
def client(served: Served) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{served.url}/v1", api_key=KEY, max_retries=0) as client:
        yield client


def test_a_conversation_is_answered_whole_and_streamed_alike(client: OpenAI) -> None:
    options: dict[str, Any] = {"model": MODEL, "messages": QUESTION, "max_tokens": 12, "seed": 5}
    whole = client.chat.completions.create(**options)
    chunks = list(client.chat.completions.create(**options, stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason == "length"
    assert chunks[-1].choices == []
    assert chunks[-1].usage and whole.usage
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens == 12
    assert len({(chunk.id, chunk.created, chunk.model) for chunk in chunks}) == 1
    assert whole.system_fingerprint == chunks[0].system_fingerprint


def test_several_outputs_and_log_probabilities(client: OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=QUESTION, max_tokens=3, n=2, seed=1, logprobs=True, top_logprobs=2
    )
    assert [choice.index for choice in answer.choices] == [0, 1]
    for choice in answer.choices:
        assert choice.logprobs and choice.logprobs.content
        assert len(choice.logprobs.content) == 3
        assert all(len(position.top_logprobs) == 2 for position in choice.logprobs.content)


def test_a_stop_string_ends_the_text_before_it(client: OpenAI) -> None:
    options: dict[str, Any] = {"model": MODEL, "prompt": "The switch", "max_tokens": 20, "temperature": 0}
    text = client.completions.create(**options).choices[0].text
    stop = text[6:9]
    choice = client.completions.create(**options, stop=stop).choices[0]
    assert (choice.text, choice.finish_reason) == (text[: text.index(stop)], "stop")
    streamed = list(client.completions.create(**options, stop=[stop], stream=True))
    assert "".join(chunk.choices[0].text for chunk in streamed) == choice.text


def test_several_prompts_in_one_call_come_back_in_order(client: OpenAI) -> None:
    prompts = ["The switch", "Queues", "Schedulers choose"]
    options: dict[str, Any] = {"model": MODEL, "max_tokens": 5, "temperature": 0}
    alone = [client.completions.create(prompt=prompt, **options).choices[0].text for prompt in prompts]
    together = client.completions.create(prompt=prompts, **options)
    assert [choice.text for choice in together.choices] == alone
    texts = ["", "", ""]
    for chunk in client.completions.create(prompt=prompts, stream=True, **options):
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == alone


def test_embeddings_are_what_the_sdk_unpacks(client: OpenAI) -> None:
    packed = client.embeddings.create(model=MODEL, input=["The switch", "Queues"])
    plain = client.embeddings.create(model=MODEL, input=["The switch", "Queues"], encoding_format="float")
    one, two = (np.array(entry.embedding) for entry in packed.data)
    assert np.allclose(one, plain.data[0].embedding, atol=1e-6)
    assert np.linalg.norm(one) == pytest.approx(1.0, abs=1e-5)
    assert abs(float(one @ two)) < 0.999
    raw = client.embeddings.with_raw_response.create(
        model=MODEL, input="The switch", encoding_format="base64", dimensions=8
    )
    packed_floats = base64.b64decode(raw.http_response.json()["data"][0]["embedding"])
    assert len(np.frombuffer(packed_floats, dtype="<f4")) == 8
    assert packed.usage.prompt_tokens == packed.usage.total_tokens > 0


def test_the_models_are_listed(client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).owned_by == "switchgear"


def test_what_we_add_to_the_api_is_taken_too(client: OpenAI) -> None:
    answer = client.completions.create(
        model=MODEL,
        prompt="The switch",
        max_tokens=4,
        extra_body={"top_k": 1, "ignore_eos": True, "priority": 3, "deadline": 60, "nobody_knows": {"this": 1}},
    )
    assert answer.usage and answer.usage.completion_tokens == 4


def test_every_answer_has_a_request_id(client: OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=QUESTION, max_tokens=1)
    assert answer._request_id and answer._request_id != answer.id
    mine = client.chat.completions.create(
        model=MODEL, messages=QUESTION, max_tokens=1, extra_headers={"x-request-id": "mine-1"}
    )
    assert mine._request_id == "mine-1"


# -- every class of error -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_bad_field_is_a_bad_request_that_names_it(client: OpenAI, is_streamed: bool) -> None:
    with pytest.raises(openai.BadRequestError) as error:
        client.chat.completions.create(model=MODEL, messages=QUESTION, temperature=-1, stream=is_streamed)
    assert (error.value.param, error.value.type) == ("temperature", "invalid_request_error")
    assert error.value.request_id


@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_prompt_that_never_fits_is_a_bad_request_before_any_token(client: OpenAI, is_streamed: bool) -> None:
    with pytest.raises(openai.BadRequestError, match="512"):
        client.completions.create(model=MODEL, prompt="switch " * 600, stream=is_streamed)


def test_one_prompt_of_several_that_fails_fails_the_call(served: Served, client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError):
        client.completions.create(model=MODEL, prompt=["The switch", "switch " * 600], max_tokens=400)
    assert served.metric("switchgear_requests_running", authorization=f"Bearer {KEY}") == 0


def test_a_key_that_is_missing_or_unknown_is_an_authentication_error(served: Served) -> None:
    with (
        OpenAI(base_url=f"{served.url}/v1", api_key="sk-wrong", max_retries=0) as client,
        pytest.raises(openai.AuthenticationError, match="unknown"),
    ):
        client.models.list()


def test_a_key_that_may_not_is_a_permission_error(client: OpenAI) -> None:
    with pytest.raises(openai.PermissionDeniedError, match="admin"):
        client.post("../admin/prefix_cache/reset", body={}, cast_to=object)


def test_a_model_that_is_not_served_is_not_found(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as error:
        client.completions.create(model="gpt-4", prompt="x")
    assert (error.value.code, error.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("org/gpt-4")


def test_one_request_too_many_is_a_rate_limit_error_that_the_sdk_can_wait_out(served: Served, client: OpenAI) -> None:
    options: dict[str, Any] = {"model": MODEL, "prompt": "The switch", "extra_body": {"ignore_eos": True}}
    streams = [client.completions.create(**options, max_tokens=400, stream=True) for _ in range(2)]
    with pytest.raises(openai.RateLimitError) as error:
        client.completions.create(**options, max_tokens=1)
    headers = error.value.response.headers
    assert 0 < float(headers["retry-after"]) <= 120 and 0 < float(headers["retry-after-ms"]) <= 120_000
    for stream in streams:
        stream.close()
    patient = client.with_options(max_retries=5)
    assert patient.completions.create(**options, max_tokens=1).choices


def test_a_deadline_that_passes_is_an_error_that_is_not_tried_again(client: OpenAI) -> None:
    with pytest.raises(openai.APIStatusError) as error:
        client.completions.create(
            model=MODEL, prompt="The switch", max_tokens=400, extra_body={"deadline": 0.001, "ignore_eos": True}
        )
    assert error.value.status_code == 408
    assert error.value.response.headers["x-should-retry"] == "false"


def test_a_deadline_that_passes_on_the_way_ends_the_stream_with_an_error(client: OpenAI) -> None:
    stream = client.completions.create(
        model=MODEL,
        prompt="The switch",
        max_tokens=400,
        stream=True,
        extra_body={"deadline": 0.25, "ignore_eos": True},
    )
    first = next(iter(stream))
    assert first.choices
    with pytest.raises(openai.APIError, match="deadline"):
        list(itertools.islice(stream, 500))

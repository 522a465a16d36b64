"""Whatever is thrown at the server is answered, never with a 500, and the engine lives."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from .served import Served, serving

NUM_BODIES = 10_000
KEYS = {"message", "type", "param", "code"}
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
SCHEMATHESIS = (
    *(sys.executable, "-m", "schemathesis.cli", "run", "--no-color", "--checks", CHECKS, "--max-examples", "20"),
    *(
        "--seed",
        "1",
        "--exclude-path-regex",
        "^/admin",
        "--request-timeout",
        "60",
        "--phases",
        "coverage,fuzzing",
        "--exclude-path",
        "/metrics",
    ),
)
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
COMPLETION = {"model": "tiny", "prompt": "Hi", "max_tokens": 2}
EMBEDDING = {"model": "tiny", "input": "Hi"}
BASES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": COMPLETION,
    "/v1/embeddings": EMBEDDING,
    "/tokenize": {"model": "tiny", "prompt": "Hi"},
    "/detokenize": {"model": "tiny", "tokens": [1, 2]},
}
FIELDS = [
    *("model", "messages", "prompt", "input", "tokens", "max_tokens", "max_completion_tokens", "temperature", "top_p"),
    *("top_k", "n", "seed", "stop", "stream", "stream_options", "logprobs", "top_logprobs", "logit_bias", "echo"),
    *("presence_penalty", "frequency_penalty", "best_of", "suffix", "tools", "tool_choice", "response_format"),
    *("dimensions", "encoding_format", "pooling", "priority", "deadline", "min_tokens", "stop_token_ids", "metadata"),
    *("ignore_eos", "repetition_penalty", "min_p", "prompt_logprobs", "continue_final_message", "user"),
    "chat_template_kwargs",
]
VALUES: list[Any] = [
    *(None, True, False, 0, 1, -1, 2, 20, 21, 129, 2**31, 2**63, -(2**63) - 1, 10**40, 0.0, -0.5, 1.5, 1e308),
    *("", "a", "\x00", "<|im_end|>", "{{ 7 * 7 }}", "\u202e\U0001f600", "x" * 2000),
    *([], [[]], [None], [0], [1, 2, 3], [-1], [10**9], ["a", "b"], [["a"]]),
    *({}, {"a": 1}, {"0": 100}, {"-1": 1}, {"x": "y"}, {"type": "json_object"}, {"include_usage": True}),
    [{"role": "user", "content": None}],
    [{"role": "nobody", "content": "a"}],
    [{"role": "user", "content": [{"type": "image_url"}]}],
]


@pytest.fixture(scope="module")
def served(tiny_model: Path) -> Iterator[Served]:
    """Answers are short, so that many of them fit into a minute."""
    options = ("--on", "structured_output", "--set", "engine.max_model_len=96")
    with serving(tiny_model, "--served-model-name", "tiny", *options) as served:
        yield served


def is_alive(served: Served) -> bool:
    answer = httpx2.post(f"{served.url}/v1/completions", json=COMPLETION, timeout=30)
    return answer.status_code == 200 and bool(answer.json()["choices"])


@pytest.mark.slow
def test_ten_thousand_bodies(served: Served) -> None:
    """Fields with values that they were not made for, one to three at a time."""
    chance = random.Random(0)
    engine = served.engine
    statuses: dict[int, int] = {}
    problems: list[str] = []

    def body() -> tuple[str, bytes]:
        path = chance.choice(list(BASES))
        fields = {**BASES[path], **{chance.choice(FIELDS): chance.choice(VALUES) for _ in range(chance.randint(1, 3))}}
        text = json.dumps(fields)
        if chance.random() < 0.1:
            # broken in the middle
            place = chance.randrange(len(text))
            text = text[:place] + chance.choice(["", "\\ud800", "\x00", "}", "[" * 3000, '"']) + text[place + 1 :]
        return path, text.encode()

    async def send() -> None:
        async with httpx2.AsyncClient(
            base_url=served.url, timeout=60, limits=httpx2.Limits(max_connections=16)
        ) as client:

            async def one() -> None:
                path, data = body()
                answer = await client.post(path, content=data, headers={"content-type": "application/json"})
                statuses[answer.status_code] = statuses.get(answer.status_code, 0) + 1
                if answer.status_code >= 500 or (
                    answer.status_code >= 400 and set(answer.json()["error"]) != {"message", "type", "param", "code"}
                ):
                    problems.append(f"{path} {data[:300]!r}: {answer.text[:300]}")

            async def worker() -> None:
                for _ in range(NUM_BODIES // 16):
                    await one()

            await asyncio.gather(*(worker() for _ in range(16)))

    asyncio.run(send())
    assert problems == []
    assert statuses.get(200, 0) > 500 and statuses.get(400, 0) > 1000, statuses
    assert served.engine == engine and is_alive(served)
    assert httpx2.post(f"{served.url}/admin/core/audit").json() == []


@pytest.mark.parametrize(
    "body",
    {
        "a lone surrogate": b'{"model": "tiny", "prompt": "\\ud800"}',
        "ten megabytes": json.dumps({**COMPLETION, "prompt": "a" * 10_000_000}).encode(),
        "deep JSON": b'{"model": "tiny", "prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        "deep JSON in an unknown field": b'{"model": "tiny", "prompt": "a", "x": '
        + b"[" * 100_000
        + b"]" * 100_000
        + b"}",
        "a million biases": json.dumps({**COMPLETION, "logit_bias": {str(i): 1 for i in range(200_000)}}).encode(),
        "no JSON": b"\xff\xfe\x00",
        "an array": b"[]",
        "an endless number": b'{"model": "tiny", "prompt": "a", "seed": ' + b"9" * 100_000 + b"}",
    }.items(),
    ids=lambda item: item[0],
)
def test_a_hostile_body_is_refused(served: Served, body: tuple[str, bytes]) -> None:
    answer = httpx2.post(f"{served.url}/v1/completions", content=body[1], timeout=60)
    assert answer.status_code in (400, 413), answer.text[:300]
    assert set(answer.json()["error"]) == KEYS
    assert is_alive(served)


@pytest.mark.slow
def test_our_own_document_holds(served: Served) -> None:
    """Schemathesis: bodies that the document allows and bodies that it forbids, on every operation."""
    done = subprocess.run([*SCHEMATHESIS, f"{served.url}/openapi.json"], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert is_alive(served)

"""The model of a simulation: only its shape counts, from which follows how much KV a token takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from ..config import Config
from ..engine.build import find
from ..errors import ConfigError
from ..model.shape_only import BYTES_PER_TOKEN, shape_only
from ..model.spec import ModelSpec
from ..records import Device, IntArray
from .costed_executor import VOCAB_SIZE


@dataclass(frozen=True, slots=True)
class Shape:
    """What is simulated, and the config that says so."""

    config: Config
    spec: ModelSpec
    """With the vocabulary of the costed executor, which has no token that ends a text."""
    device: Device
    dtype_reason: str
    encode: Callable[[str], IntArray] | None = None
    """A text's tokens, as many and as equal as the model's own; None where there is no tokenizer."""


def shape_at_hand(config: Config, classes: Sequence[type] = ()) -> Shape:
    """Of the config's model, whose files are fetched if they are not there; its weights are not read.

    Raises ConfigError, ModelError or PluginError.
    """
    found = find(config, tuple(classes))
    tokenizer = found.tokenizer

    def encode(text: str) -> IntArray:
        # equal ids stay equal, which is all that a cache sees of them
        return np.array(tokenizer.encode(text), dtype=np.int64) % VOCAB_SIZE

    spec = replace(found.spec, vocab_size=VOCAB_SIZE, eos_ids=frozenset())
    return Shape(config, spec, found.device, found.dtype_reason, encode)


def shape_of_tokens(config: Config, name: str, kv_tokens: int, max_model_len: int) -> Shape:
    """Of a model that is not at hand and whose KV pool holds `kv_tokens` tokens. Raises ConfigError."""
    if kv_tokens < 1:
        raise ConfigError(f"a KV pool of {kv_tokens} tokens holds nothing: give at least 1")
    if config.engine.kv_bytes is not None:
        raise ConfigError("the KV pool was given in tokens and as [engine] kv_bytes too: give one of them")
    engine = msgspec.structs.replace(config.engine, kv_bytes=kv_tokens * BYTES_PER_TOKEN)
    model = msgspec.structs.replace(config.model, name=name, dtype="float32", device="cpu")
    config = msgspec.structs.replace(config, model=model, engine=engine)
    max_model_len = max(max_model_len, config.engine.max_model_len or 0)
    spec = shape_only(name, vocab_size=VOCAB_SIZE, max_model_len=max_model_len)
    return Shape(config, spec, Device("cpu", "float32"), "KV is counted in tokens")

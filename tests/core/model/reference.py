"""Random models made by transformers, and what this engine makes of the same checkpoint."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from switchgear import LLM
from switchgear.core.records import NO_ROWS, Batch
from torch.overrides import TorchFunctionMode

SIZES: Mapping[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


def make_reference(architecture: str, config: str, **overrides: Any) -> Any:
    """A random model of a class of transformers, with a config of another; what starts as 0 or 1 is random too."""
    torch.manual_seed(7)
    settings = getattr(transformers, config)(**{**SIZES, **overrides})
    model = getattr(transformers, architecture)._from_config(
        settings, attn_implementation="eager", experts_implementation="eager"
    )
    model.eval()
    for name, parameter in model.named_parameters():
        if name.endswith("bias") or "norm" in name:
            torch.nn.init.normal_(parameter, mean=float(parameter.detach().mean().round()), std=0.2)
    return model


def save(model: Any, directory: Path, tiny_model: Path, **options: Any) -> Path:
    """As transformers saves it, with the tokenizer of the tiny model beside it."""
    model.save_pretrained(directory, **options)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tiny_model / name, directory / name)
    return directory


def reference_logits(model: Any, sequence: list[int]) -> torch.Tensor:
    with torch.no_grad():
        logits: torch.Tensor = model(torch.tensor([sequence])).logits[0]
    return logits


def greedy(model: Any, prompt: list[int], num_tokens: int) -> list[int]:
    """What transformers generates after the prompt, one token at a time through its own cache."""
    generated = model.generate(
        torch.tensor([prompt]), do_sample=False, max_new_tokens=num_tokens, eos_token_id=None, pad_token_id=0
    )
    tokens: list[int] = generated[0, len(prompt) :].tolist()
    return tokens


def all_logits(llm: LLM, sequences: list[list[int]]) -> list[torch.Tensor]:
    """Logits at every position of a ragged batch, through the engine's own worker in one step."""
    lens = np.array([len(sequence) for sequence in sequences])
    starts = np.concatenate([[0], np.cumsum(lens)])
    positions = np.concatenate([np.arange(length) for length in lens])
    block_size = llm.plan.kv_block_size
    executor: Any = llm._engine.executor
    num_groups = len(executor.kv_spec)
    batch = Batch(
        step=0,
        rows=np.arange(len(sequences)),
        token_ids=np.concatenate([np.array(sequence) for sequence in sequences]),
        positions=positions,
        query_start=starts,
        context_lens=lens,
        num_drafts=np.zeros(len(sequences), dtype=np.int64),
        block_tables=(np.arange(len(sequences))[:, None],) * num_groups,
        slots=(np.repeat(np.arange(len(sequences)), lens) * block_size + positions,) * num_groups,
        block_size=block_size,
        copies=(),
        outputs=np.arange(starts[-1]),
        scored=NO_ROWS,
        targets=NO_ROWS,
    )
    return list(executor.worker.run(batch).logits.split(lens.tolist()))


def in_float64(model: Any) -> Any:
    """The model in float64, but for the frequencies of its rope: those are float32 for everybody."""
    model.double()
    for name, buffer in model.named_buffers():
        if "inv_freq" in name:
            buffer.data = buffer.data.float()
    return model


class StaysDouble(TorchFunctionMode):
    """transformers takes norms and softmax in float32 whatever the model's dtype; here float64 stays float64."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if args and isinstance(args[0], torch.Tensor) and args[0].dtype is torch.float64:
            if func is torch.Tensor.float:
                return args[0]
            args = tuple(torch.float64 if argument is torch.float32 else argument for argument in args)
            kwargs = {key: torch.float64 if value is torch.float32 else value for key, value in kwargs.items()}
        return func(*args, **kwargs)

"""Gemma 3 checkpoints for text and images: their text model is run, their vision tower stays in the file."""

from __future__ import annotations

from pathlib import Path

import torch
from switchgear import LLM, SamplingParams

from .reference import SIZES, all_logits, make_reference, reference_logits, save


def test_the_text_model_of_a_checkpoint_with_vision(tmp_path: Path, tiny_model: Path) -> None:
    text = {
        **SIZES,
        "vocab_size": 560,
        "head_dim": 16,
        "sliding_window": 24,
        "query_pre_attn_scalar": 10,
        "sliding_window_pattern": 2,
    }
    vision = {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 28,
        "patch_size": 14,
    }
    model = make_reference(
        "Gemma3ForConditionalGeneration",
        "Gemma3Config",
        text_config=text,
        vision_config=vision,
        mm_tokens_per_image=1,
        image_token_index=511,
    )
    path = save(model, tmp_path / "model", tiny_model)
    sequence = torch.randint(3, 500, (90,), generator=torch.Generator().manual_seed(4)).tolist()
    with LLM(str(path), dtype="float32", plugins={}) as llm:
        torch.testing.assert_close(all_logits(llm, [sequence])[0], reference_logits(model, sequence), atol=1e-4, rtol=0)
        (result,) = llm.generate([sequence], SamplingParams(max_tokens=4, ignore_eos=True))
        assert len(result.token_ids) == 4
        assert llm.prompts.tokenizer.vocab_size == 560, "ids that only pad the text model's head can be sampled"

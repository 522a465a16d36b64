"""The files of one model in the Hugging Face layout, found and checked before anything heavy is loaded."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import ModelError


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """Where a model lies and what its JSON files say."""

    name: str
    """As the user wrote it."""
    source: Path
    """The model's own .gguf file or directory."""
    directory: Path
    """The Hugging Face layout to load from; for a GGUF the converted copy in the cache."""
    weights: tuple[Path, ...]
    """Safetensors files, one or one per shard."""
    config: Mapping[str, Any]
    generation_config: Mapping[str, Any]
    """Empty where the model has none."""
    tokenizer: Path
    """A tokenizer.json."""
    tokenizer_config: Mapping[str, Any]
    """Special tokens and `chat_template`; empty where the model has none."""


def read_directory(name: str, source: Path, directory: Path) -> ModelFiles:
    """Find a model's files in a Hugging Face directory; ModelError says which file is missing or broken."""
    tokenizer = directory / "tokenizer.json"
    config = _read_json(name, directory / "config.json")
    if config is None:
        raise ModelError(f"{name} has no config.json; give a Hugging Face model directory or a .gguf file")
    if not tokenizer.is_file():
        raise ModelError(
            f"{name} has no tokenizer.json; save one beside config.json with "
            "transformers.AutoTokenizer.from_pretrained(...).save_pretrained(...)"
        )
    return ModelFiles(
        name=name,
        source=source,
        directory=directory,
        weights=_find_weights(name, directory),
        config=config,
        generation_config=_read_json(name, directory / "generation_config.json") or {},
        tokenizer=tokenizer,
        tokenizer_config=_read_tokenizer_config(name, directory),
    )


def _find_weights(name: str, directory: Path) -> tuple[Path, ...]:
    single = directory / "model.safetensors"
    if single.is_file():
        return (single,)
    index = _read_json(name, directory / "model.safetensors.index.json")
    if index is not None:
        return _find_shards(name, directory, index)
    if any(directory.glob("*.bin")):
        raise ModelError(
            f"{name} has its weights in .bin files only, which can run code when read; convert them to safetensors "
            "with transformers: AutoModelForCausalLM.from_pretrained(...).save_pretrained(...)"
        )
    raise ModelError(f"{name} has no model.safetensors; fetch the model again or convert it to safetensors")


def _find_shards(name: str, directory: Path, index: Mapping[str, Any]) -> tuple[Path, ...]:
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelError(f"{name} has a model.safetensors.index.json without weight_map; fetch the model again")
    shards = tuple(directory / file for file in sorted(set(weight_map.values())))
    missing = [shard.name for shard in shards if not shard.is_file()]
    if missing:
        raise ModelError(f"{name} lacks {', '.join(missing)}; fetch the model again")
    return shards


def _read_tokenizer_config(name: str, directory: Path) -> Mapping[str, Any]:
    tokenizer_config = _read_json(name, directory / "tokenizer_config.json") or {}
    template_file = directory / "chat_template.jinja"
    if template_file.is_file():
        return {**tokenizer_config, "chat_template": template_file.read_text(encoding="utf-8")}
    return tokenizer_config


def _read_json(name: str, file: Path) -> Mapping[str, Any] | None:
    """The object in the file, or None where there is no such file."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ModelError(
            f"{name} has a {file.name} that cannot be opened ({error.strerror}); check who may read it"
        ) from error
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ModelError(f"{name} has a {file.name} that is not valid JSON ({error}); fetch the model again") from error
    if not isinstance(content, dict):
        raise ModelError(f"{name} has a {file.name} that holds no JSON object; fetch the model again")
    return content

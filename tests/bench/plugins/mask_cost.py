"""What a structure costs: reading the vocabulary once, compiling once a structure, and a mask a token.

The masks are those of a real tokenizer along texts that keep to their structures, no model being run. A mask counts
from the call to the booleans that the sampler gets.

Target: 0.3 ms a mask, small beside a decode step. A 135M model on two cores takes some 20 ms.
"""

from __future__ import annotations

import argparse
import json
import sys
import time

import numpy as np
from switchgear.core.model.architectures import model_spec
from switchgear.core.model.store import resolve
from switchgear.core.model.tokenizer import Tokenizer
from switchgear.core.model.vocabulary import read_vocabulary
from switchgear.core.sampling_params import Structure
from switchgear.plugins.structured_output import StructuredOutput, StructureMasks

TARGET_MS = 0.3
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 60},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "emails": {"type": "array", "items": {"type": "string", "format": "email"}, "maxItems": 5},
        "address": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/address"}]},
        "notes": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["name", "age", "emails", "address", "notes"],
    "additionalProperties": False,
    "$defs": {
        "address": {
            "type": "object",
            "properties": {"street": {"type": "string"}, "zip": {"type": "string", "pattern": "^[0-9]{5}$"}},
            "required": ["street", "zip"],
        }
    },
}
ANN = {
    "name": "Ann Example",
    "age": 41,
    "emails": ["ann@example.org", "a.example@example.com"],
    "address": {"street": "12 Switch Lane", "zip": "12345"},
    "notes": ["Likes long walks through block tables.", 'Reads everything twice; "everything" means the manual.'] * 8,
}
CASES: dict[str, tuple[Structure, str]] = {
    "json_object": (Structure("json_object"), json.dumps(ANN)),
    "json_schema": (Structure("json_schema", json.dumps(PERSON)), json.dumps(ANN, indent=2)),
    "regex": (
        Structure("regex", r"([A-Z][a-z]{1,12} ){20,60}[0-9]{4}-[0-9]{2}"),
        "Switch Gear Block " * 12 + "2026-12",
    ),
    "choice": (Structure("choice", json.dumps([f"label number {n}" for n in range(1000)])), "label number 977"),
    "grammar": (
        Structure(
            "grammar",
            'start: sum\nsum: product ("+" product)*\nproduct: part ("*" part)*\npart: /[0-9]+/ | "(" sum ")"',
        ),
        "12*(3+45)+678*(9+(1+2)*3)+" * 6 + "1",
    ),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m", help="whose tokenizer (%(default)s)")
    parser.add_argument("--runs", type=int, default=5, help="(%(default)s)")
    args = parser.parse_args()
    files = resolve(args.model, "float32")
    tokenizer = Tokenizer(files)
    spec = model_spec(args.model, files.config, tokenizer.eos_ids)
    started = time.perf_counter()
    vocabulary = read_vocabulary(tokenizer, spec.vocab_size)
    read = time.perf_counter()
    masks = StructureMasks(StructuredOutput.Config(), vocabulary, sorted(spec.eos_ids), time.perf_counter)
    built = time.perf_counter()
    print(f"{args.model}: {spec.vocab_size} tokens; read in {read - started:.3f} s, indexed in {built - read:.3f} s")
    print(f"{'structure':<12} {'tokens':>6} {'compile ms':>11} {'mask us, median':>16} {'99th':>8} {'largest':>8}")
    worst = 0.0
    for name, (structure, text) in CASES.items():
        ids = tokenizer.encode(text, add_special=False)
        started = time.perf_counter()
        masks.check_structure(structure)
        compiled = time.perf_counter() - started
        micros = np.concatenate([mask_micros(masks, structure, ids) for _ in range(args.runs)])
        worst = max(worst, float(np.median(micros)))
        median, tail = np.median(micros), np.quantile(micros, 0.99)
        print(f"{name:<12} {len(ids):>6} {compiled * 1e3:>11.1f} {median:>16.0f} {tail:>8.0f} {micros.max():>8.0f}")
    is_met = worst <= TARGET_MS * 1e3
    print(f"{'met' if is_met else 'MISSED'}: at most {TARGET_MS} ms a mask in the median")
    return 0 if is_met else 1


def mask_micros(masks: StructureMasks, structure: Structure, ids: list[int]) -> np.ndarray:
    """Microseconds of each mask along the text; raises ValueError where the text does not keep to the structure."""
    row, nothing = np.zeros(1, dtype=np.int64), (np.empty(0, dtype=np.int64),)
    masks.begin(0, structure)
    micros = []
    for id in ids:
        started = time.perf_counter()
        mask = masks.mask(row, nothing, row)
        micros.append((time.perf_counter() - started) * 1e6)
        if mask is None or not mask[0, id]:
            raise ValueError(f"token {id} is not allowed")
        masks.advance(0, (id,))
    masks.drop(row)
    return np.array(micros)


if __name__ == "__main__":
    sys.exit(main())

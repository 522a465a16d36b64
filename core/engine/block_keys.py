"""Keys of full KV blocks: made by the core alone, so that no plugin can forget what separates two tenants.

A key covers every token up to the block's end, through the key of the block before it, and is domain-separated from
everything else that is hashed. A provider sees opaque bytes.
"""

from __future__ import annotations

import hashlib

from ..records import IntArray

DOMAIN = b"switchgear.kv-block.v1"


def root_key(*, tenant: str, model: str, adapter: str = "", salt: str = "") -> bytes:
    """What the first block's key is chained to. Each part is length-prefixed, so that no two sets of parts collide."""
    digest = hashlib.sha256(DOMAIN)
    for part in (tenant, model, adapter, salt):
        encoded = part.encode()
        digest.update(len(encoded).to_bytes(8, "little") + encoded)
    return digest.digest()


def extend_keys(root: bytes, keys: list[bytes], tokens: IntArray, block_size: int) -> None:
    """Append to `keys` one key for each full block of `tokens` that has none yet."""
    for start in range(len(keys) * block_size, len(tokens) - block_size + 1, block_size):
        parent = keys[-1] if keys else root
        block = tokens[start : start + block_size].astype("<i8", copy=False).tobytes()
        keys.append(hashlib.sha256(DOMAIN + parent + block).digest())

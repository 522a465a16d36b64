"""A prompt on its way to becoming a vector."""

from __future__ import annotations

import numpy as np

from ..engine.emission import Emission, Vector
from ..errors import RequestError


class EmbeddingRequest:
    """Waits for the one emission that ends it."""

    def __init__(self, request_id: str) -> None:
        self.request_id = request_id
        self.end: Emission | None = None

    @property
    def is_done(self) -> bool:
        return self.end is not None

    def take(self, emission: Emission) -> None:
        if emission.finish_reason is not None:
            self.end = emission

    def result(self) -> Vector:
        """`[E]`, not normalised. Raises RequestError for a request that failed."""
        assert self.end is not None
        if self.end.pooled is None:
            raise RequestError(self.end.error or "the request was aborted")
        return self.end.pooled


def normalized(vector: Vector) -> Vector:
    """The vector at length 1; one of length 0 stays as it is."""
    length = float(np.linalg.norm(vector.astype(np.float64)))
    return (vector / length).astype(np.float32) if length else vector

"""Element types by the numbers that the native library has for them."""

from __future__ import annotations

import torch

ELEMENTS = {torch.bfloat16: 0, torch.float32: 1, torch.float64: 2}
"""What weights and hidden states are made of."""

NUMBERS = {torch.float32: 1, torch.float64: 2, torch.int64: 3}
"""What is only compared: logits and laws."""

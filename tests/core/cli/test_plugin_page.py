from typing import Annotated, Any, Literal, Optional

import msgspec
import pytest
from switchgear.core.cli.plugin_page import type_text


@pytest.mark.parametrize(
    ("annotation", "text"),
    [
        (int, "int"),
        (Annotated[int, msgspec.Meta(ge=1)], "int >= 1"),
        (Annotated[float, msgspec.Meta(gt=0, le=1)], "float > 0 and <= 1"),
        (Annotated[str, msgspec.Meta(min_length=2)], "str length >= 2"),
        (Annotated[int, msgspec.Meta(description="x")], "int"),
        (Annotated[int, msgspec.Meta(ge=1)] | None, "int >= 1 | None"),
        (Optional[str], "str | None"),  # noqa: UP045  the old spelling is another object
        (Literal["fp8", 3], "'fp8' | 3"),
        (dict[str, int], "dict[str, int]"),
    ],
)
def test_types_read_as_one_would_say_them(annotation: Any, text: str) -> None:
    assert type_text(annotation) == text

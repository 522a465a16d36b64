"""The docstrings under the fields of a class, which Python itself does not keep."""

from __future__ import annotations

import ast
import inspect
import itertools
import textwrap


def field_docs(cls: type) -> dict[str, str]:
    """What stands under each field, on one line, inherited ones included; nothing where there is no source."""
    documents: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        try:
            source = inspect.getsource(base)
        except (OSError, TypeError):  # shipped as bytecode, or built in
            continue
        (definition,) = ast.parse(textwrap.dedent(source)).body
        assert isinstance(definition, ast.ClassDef)
        for field, after in itertools.pairwise(definition.body):
            match field, after:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    documents[name] = " ".join(text.split())
    return documents

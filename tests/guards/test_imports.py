"""Arrows point one way, and light modules name no heavy library at their top: read from the sources."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted(path for folder in ("core", "kernels", "plugins") for path in (ROOT / folder).rglob("*.py"))

LAYERS = (
    ("config", "errors", "hooks", "interfaces", "plan", "recipes", "records", "registry", "sampling_params"),
    ("model",),
    ("defaults", "engine"),
    ("gateway", "lab", "testing"),
    ("cli",),
)
"""The parts of core. A part imports its own layer and those before it; only annotations may look further."""

LEVEL = {part: level for level, layer in enumerate(LAYERS) for part in layer}
KERNELS_MAY = ("switchgear.kernels", "switchgear.core.model.ops")
HEAVY = {"accelerate", "bitsandbytes", "gguf", "hnswlib", "huggingface_hub", "ray", "sentence_transformers"}
HEAVY |= {"tokenizers", "torch", "transformers", "triton"}


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(("switchgear", *parts))


def part_of(name: str) -> str | None:
    """The part of core that a dotted name lies in."""
    parts = name.split(".")
    return parts[2] if parts[:2] == ["switchgear", "core"] and len(parts) > 2 else None


def nodes(node: ast.AST, *, at_top: bool, annotations: bool) -> Iterator[ast.AST]:
    """The nodes below; `at_top` leaves out bodies of functions, no `annotations` those of `if TYPE_CHECKING`."""
    for child in ast.iter_child_nodes(node):
        is_function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
        is_annotation = isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"
        if not (is_function and at_top) and (annotations or not is_annotation):
            yield child
            yield from nodes(child, at_top=at_top, annotations=annotations)


def imports(module: str, source: str, *, at_top: bool = False, annotations: bool = False) -> set[str]:
    """Dotted names that a module (`a.b.__init__` for a package) imports; of `from a import b` just `a.b`."""
    names: set[str] = set()
    for node in nodes(ast.parse(source), at_top=at_top, annotations=annotations):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            package = module.split(".")[: -node.level] if node.level else []
            start = [*package, *([node.module] if node.module else [])]
            names |= {".".join([*start, alias.name]) for alias in node.names}
    return names


def against_the_arrows(module: str, source: str) -> set[str]:
    """Imports that this module may not make."""
    folder = module.split(".")[1]
    if folder == "plugins":
        return set()
    everything = imports(module, source, annotations=True)
    ours = {name for name in everything if name.startswith("switchgear.")}
    if folder == "kernels":
        return {name for name in ours if not f"{name}.".startswith(tuple(f"{may}." for may in KERNELS_MAY))}
    outside = {name for name in ours if not name.startswith("switchgear.core.")}
    level = LEVEL.get(part_of(module) or "", 0)
    return outside | {name for name in imports(module, source) if LEVEL.get(part_of(name) or "", 0) > level}


def heavy_at_top(module: str, source: str) -> set[str]:
    """Heavy libraries that load as soon as the module does."""
    return {name.partition(".")[0] for name in imports(module, source, at_top=True)} & HEAVY


def is_light(module: str) -> bool:
    """Loaded before anybody has chosen a model: the contract, the commands and every plugin."""
    return module.startswith("switchgear.plugins.") or part_of(module) in (*LAYERS[0], "cli")


def test_every_part_of_core_has_a_layer() -> None:
    parts = {part_of(module_name(path)) for path in FILES} - {None, "__init__"}
    assert parts - set(LEVEL) == set(), "give it a place in LAYERS"


def test_imports_follow_the_arrows() -> None:
    wrong = {module_name(path): against_the_arrows(module_name(path), path.read_text()) for path in FILES}
    assert {module: names for module, names in wrong.items() if names} == {}


def test_light_modules_name_no_heavy_library_at_their_top() -> None:
    light = [path for path in FILES if is_light(module_name(path))]
    heavy = {module_name(path): heavy_at_top(module_name(path), path.read_text()) for path in light}
    assert {module: names for module, names in heavy.items() if names} == {}


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("switchgear.core.registry", "from ..plugins import paged_kv"),
        ("switchgear.core.registry", "def load():\n    from ..kernels.triton import rms_norm"),
        ("switchgear.core.hooks", "if TYPE_CHECKING:\n    from ..plugins.paged_kv import PagedKV"),
        ("switchgear.core.hooks", "from . import engine"),
        ("switchgear.core.model.loader", "from ..engine.driver import Driver"),
        ("switchgear.core.model.__init__", "from ..engine.driver import Driver"),
        ("switchgear.core.engine.engine", "import switchgear.core.gateway.app"),
        ("switchgear.kernels.triton.rms_norm", "from ...core.engine import sampler"),
        ("switchgear.kernels.triton.rms_norm", "from ...plugins import triton_ops"),
    ],
)
def test_an_arrow_that_points_back_is_seen(module: str, source: str) -> None:
    assert against_the_arrows(module, source)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("switchgear.core.hooks", "if TYPE_CHECKING:\n    from .model.spec import ModelSpec"),
        ("switchgear.core.engine.engine", "from ..model import ops\nfrom ..records import Plan\nimport torch"),
        ("switchgear.core.engine.__init__", "from .engine import Engine"),
        ("switchgear.core.cli.run", "from ..gateway.llm import LLM"),
        ("switchgear.kernels.triton.rms_norm", "from ...core.model.ops import rms_norm\nfrom . import tiles"),
        ("switchgear.plugins.triton_ops", "from ..kernels.triton import rms_norm\nfrom ..core.hooks import hookimpl"),
    ],
)
def test_an_arrow_that_points_forward_is_fine(module: str, source: str) -> None:
    assert against_the_arrows(module, source) == set()


def test_a_heavy_library_is_seen_at_the_top_only() -> None:
    assert heavy_at_top("switchgear.plugins.x", "import torch.nn") == {"torch"}
    assert heavy_at_top("switchgear.plugins.x", "class A:\n    from triton import jit") == {"triton"}
    inside = "if TYPE_CHECKING:\n    import torch\ndef load():\n    import transformers"
    assert heavy_at_top("switchgear.plugins.x", inside) == set()

"""What others build on, as a literal: changing a hook or a config field is a decision that shows in the diff."""

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

HOOK_API = "(1, 0)"
HOOKS = """
on_ingress(model: ModelSpec) -> IngressStage | None
route(model: ModelSpec) -> Router | None
schedule_step(limits: Limits) -> Policy | Modifier | None
allocate_kv(spec: KVSpec, block_size: int, num_blocks: int, inner: KVAllocator | None) -> KVAllocator | None
propose_tokens(model: ModelSpec, limits: Limits) -> Proposer | None
execute(workers: WorkerFactory, inner: Executor | None) -> Executor | None
logits(model: ModelSpec, vocabulary: Callable[[], Vocabulary], clock: Callable[[], float]) -> LogitsStage | None
quantize(spec: LinearSpec, device: Device) -> LinearRecipe | None
wrap_linear(spec: LinearSpec, linear: Linear) -> Linear | None
kv_codec(head_size: int, device: Device) -> KVCodec | None
attention_impl(layer: LayerSpec, group: KVGroup, block_size: int, codec: KVCodec, device: Device) -> AttentionImpl | Refusal | None
fused_ops(op: str, device: Device) -> Callable[..., Any] | None
control(engine: EngineHandle) -> Control | None
observe() -> EventSink | None
"""  # noqa: E501 - one hook, one line

CONFIG = """
[model] name: str = 'smollm2-135m'
[model] dtype: Literal['auto', 'float64', 'float32', 'bfloat16', 'float16'] = 'auto'
[model] device: Literal['auto', 'cpu', 'cuda'] = 'auto'
[engine] max_num_seqs: AtLeastOne = 64
[engine] max_step_tokens: AtLeastOne = 2048
[engine] max_model_len: AtLeastOne | None = None
[engine] kv_bytes: AtLeastOne | None = None
[engine] max_overtaken: AtLeastOne = 256
[engine] seed: Annotated[int, msgspec.Meta(ge=0, le=2 ** 63 - 1)] = 0
[engine] allow_degrade: bool = False
[server] host: str = '127.0.0.1'
[server] port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 8000
[server] api_keys: str = ''
[server] served_model_names: tuple[str, ...] = ()
[server] max_body_bytes: AtLeastOne = 4 * 2 ** 20
[server] max_prompt_characters: AtLeastOne = 1000000
[server] max_open_requests: AtLeastOne = 256
[server] drain_seconds: Seconds = 30.0
[server] keepalive_seconds: Seconds = 15.0
[server] max_restarts: Annotated[int, msgspec.Meta(ge=0)] = 3
[server] tracing: bool = False
"""

SECTIONS = {"ModelConfig": "[model]", "EngineConfig": "[engine]", "ServerConfig": "[server]"}


def hooks_in(source: str) -> list[str]:
    """Each hookspec as `name(arguments) -> answer`, in the order of the file."""
    functions = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)]
    specs = [node for node in functions if "hookspec" in map(ast.unparse, node.decorator_list)]
    return [
        f"{node.name}({ast.unparse(node.args).removeprefix('self').removeprefix(', ')})"
        + (f" -> {ast.unparse(node.returns)}" if node.returns else "")
        for node in specs
    ]


def fields_in(source: str) -> list[str]:
    """Each option of the core's config sections, with type and default."""
    classes = [node for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and node.name in SECTIONS]
    return [
        f"{SECTIONS[node.name]} {ast.unparse(field)}"
        for node in classes
        for field in node.body
        if isinstance(field, ast.AnnAssign)
    ]


def test_the_hooks_are_those_that_plugins_were_written_for() -> None:
    source = (ROOT / "core" / "hooks.py").read_text()
    assert hooks_in(source) == HOOKS.strip().splitlines()
    assert f"HOOK_API = {HOOK_API}\n" in source


def test_the_config_has_the_options_that_files_were_written_for() -> None:
    assert fields_in((ROOT / "core" / "config.py").read_text()) == CONFIG.strip().splitlines()


def test_a_change_of_either_is_seen() -> None:
    hooks = "class HookSpecs:\n    @hookspec\n    def route(self, model: M, pools: P) -> R: ...\n    def x(self): ..."
    assert hooks_in(hooks) == ["route(model: M, pools: P) -> R"]
    config = "class EngineConfig(Base):\n    'Text.'\n    seed: int = 1\n    'Text.'"
    assert fields_in(config) == ["[engine] seed: int = 1"]

"""The hooks, in the order of a request's life. Whoever has read this file knows the engine.

Every hook is called while a process is built, never per step, layer or token: it returns an object whose methods the
core then calls directly. An implementation may name fewer arguments than the spec, so a new argument breaks nobody.
Returning None means "not me". The protocols of the answers are in `interfaces.py`, the values in `records.py`.

Each spec says: when it is called and in which process; its arguments; how many may answer; what happens if nobody does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pluggy

if TYPE_CHECKING:
    from .interfaces import (
        AttentionImpl,
        Control,
        EngineHandle,
        EventSink,
        Executor,
        IngressStage,
        KVAllocator,
        KVCodec,
        Linear,
        LinearRecipe,
        LogitsStage,
        Modifier,
        Policy,
        Proposer,
        Router,
        WorkerFactory,
    )
    from .model.spec import ModelSpec
    from .records import Device, KVGroup, KVSpec, LayerSpec, Limits, LinearSpec, Refusal, Vocabulary

HOOK_API = (1, 0)
"""(major, minor): a plugin written for the same major and no later minor loads."""

hookspec = pluggy.HookspecMarker("switchgear")
hookimpl = pluggy.HookimplMarker("switchgear")


class HookSpecs:
    # -- the gateway: before a request has a row ------------------------------------------------------------------

    @hookspec
    def on_ingress(self, model: ModelSpec) -> IngressStage | None:
        """A stage that every request enters and leaves: caches, guards, quotas.

        Called once when a gateway is built. model: the shape and name of the model served. Many may answer; requests
        enter in config order and leave in reverse. Nobody: requests go straight to the router.
        """

    @hookspec
    def route(self, model: ModelSpec) -> Router | None:
        """A router that picks the pool of a request.

        Called once when a gateway is built. model: the default pool's model. Many may answer; the first decision in
        config order counts. Nobody, or no decision: the default pool.
        """

    # -- the engine: each step ------------------------------------------------------------------------------------

    @hookspec
    def schedule_step(self, limits: Limits) -> Policy | Modifier | None:
        """Who runs in a step, and for how many tokens.

        Called once when an engine is built. limits: sequences, tokens a step and tokens a sequence. One `Policy`
        (has `plan`) and any number of `Modifier`s (have `revise`), applied in config order. No policy: static
        batching, which admits only when nothing runs.
        """

    @hookspec
    def allocate_kv(
        self, spec: KVSpec, block_size: int, num_blocks: int, inner: KVAllocator | None
    ) -> KVAllocator | None:
        """Which row holds which KV blocks.

        Called once when an engine is built, after the pool was sized. spec: the groups of layers that share tables,
        with the blocks of each; block_size: tokens a block; num_blocks: the most that any group has; inner: the
        allocator to wrap. An implementation that names `inner` is a wrapper, applied in config order; one that does
        not is the base, and its plugin has a method `kv_block_size(limits) -> int`. A base that gives back what rows
        have passed may have `kv_window_blocks(window, limits) -> int`, the most blocks that all rows together need in
        a group with that window; without it every group has `num_blocks`. One base. Nobody: one contiguous slot a
        sequence.
        """

    @hookspec
    def propose_tokens(self, model: ModelSpec, limits: Limits) -> Proposer | None:
        """Draft tokens for the core to verify.

        Called once when an engine is built. model: the target; limits: of the engine. One may answer. Nobody: no
        drafts, one token a row and step.
        """

    @hookspec
    def execute(self, workers: WorkerFactory, inner: Executor | None) -> Executor | None:
        """How a planned step is run.

        Called once when an engine is built. workers: makes the worker of a shard; inner: the executor to wrap. An
        implementation that names `inner` is a wrapper (graphs, compilation), one that does not is the base (local,
        parallel, virtual time). One base. Nobody: one worker in this process.
        """

    @hookspec
    def logits(
        self, model: ModelSpec, vocabulary: Callable[[], Vocabulary], clock: Callable[[], float]
    ) -> LogitsStage | None:
        """Restrict the next token: grammars, bans.

        Called once when an engine is built. model: number of tokens and which of them end a text; vocabulary: reads
        what each token stands for, which takes a moment; clock: the engine's, in seconds, to measure with and nothing
        else. Many may answer; a token must be allowed by all. Nobody: every token is allowed.
        """

    # -- the worker: how the model is stored and computed ---------------------------------------------------------

    @hookspec
    def quantize(self, spec: LinearSpec, device: Device) -> LinearRecipe | None:
        """How one linear is stored and multiplied.

        Called once per linear module, head and embedding included, while a worker loads. spec: its parts and shape;
        device: where it will run. The first answer in config order takes the module. Nobody: the plain weight.
        """

    @hookspec
    def wrap_linear(self, spec: LinearSpec, linear: Linear) -> Linear | None:
        """Put something around a loaded linear: LoRA, the all-reduce of tensor parallelism.

        Called once per linear module after `quantize`. spec: the module; linear: what the chain made so far, to be
        called only in a step, since its weights are not read yet. Many may answer, in config order, each around the
        one before. Nobody: the linear stays as it is.
        """

    @hookspec
    def kv_codec(self, head_size: int, device: Device) -> KVCodec | None:
        """How K and V are stored in the cache.

        Called once while a worker is built, before the pool is sized. head_size: elements a head; device: where it
        will run. One may answer. Nobody: as computed, in the model's dtype.
        """

    @hookspec
    def attention_impl(
        self, layer: LayerSpec, group: KVGroup, block_size: int, codec: KVCodec, device: Device
    ) -> AttentionImpl | Refusal | None:
        """Attention for one kind of layer.

        Called once per distinct kind while a worker is built. layer: heads, window, soft cap; group: the KV it reads;
        block_size: tokens a block; codec: how KV is stored; device: where it will run. The first in config order that
        does not refuse takes the kind, and names the cache's layout. Nobody: eager attention that materialises the
        score matrix.
        """

    @hookspec
    def fused_ops(self, op: str, device: Device) -> Callable[..., Any] | None:
        """A faster form of one operation of `core/model/ops.py`, with the same signature, called by position.

        Called once per operation while a worker is built. op: `rms_norm`, `rope`, `rope_and_cache`, `act_mul`,
        `argmax`, `top_k` (once more for the engine), and `experts` where the model has them; device: where it will run.
        The first answer in config order takes the operation. Nobody: plain PyTorch.

        `rope_and_cache` stands for `rope` of q and k and the attention's `write` together. Its answer says in `layouts`
        for which orders of a cache's axes; layers of others, and those whose KV has a codec, take the two apart.

        `top_k(x [L, V], k)` takes float32, float64 and int64. Which of equals it takes, and in which order, is its own
        affair: samples never depend on it.

        `experts(x [T, E], router_logits [T, N], gate_up, down, num_active, renormalize, activation) -> [T, E]`: each
        token through `num_active` of N experts. gate_up and down hold one `Linear` for each expert, as `quantize` and
        `wrap_linear` made them; a form that wants all weights side by side takes the linears of kind `experts` too.
        """

    # -- every process --------------------------------------------------------------------------------------------

    @hookspec
    def control(self, engine: EngineHandle) -> Control | None:
        """Named commands and counters of the plugin.

        Called once after a process's other hooks. engine: what a command may do to the engine. All may answer. Nobody:
        no commands.
        """

    @hookspec
    def observe(self) -> EventSink | None:
        """A receiver of the event stream, off the hot path.

        Called once in each process. All may answer. Nobody: events only feed the core's own metrics.
        """

"""What the handlers of one server share."""

from __future__ import annotations

import time

from ..config import ServerConfig
from .doors import Doors
from .keys import Keys
from .metrics import Metrics
from .openai.wire import Wire
from .service import Service
from .tracing import Tracer

LOADING = "The model is loading; try again in a few seconds."


class Gateway:
    """One model behind one port. It answers before the model is loaded, and then knows the model."""

    def __init__(self, service: Service, config: ServerConfig, keys: Keys) -> None:
        self.service = service
        self.config = config
        self.keys = keys
        self.metrics = Metrics(service.client)
        self.doors = Doors(config.max_open_requests, config.max_prompt_characters, self.why_not_ready)
        self.metrics.requests_open.set_function(lambda: self.doors.num_open)
        self.created = int(time.time())
        self.plan_hash = ""
        """Empty until it is known."""
        self.tracer = Tracer(service.config.model.name) if config.tracing else None
        self._wire: Wire | None = None

    def open(self) -> None:
        """Let requests in: the service has started."""
        plan, prompts = self.service.plan, self.service.prompts
        self.plan_hash = plan.hash
        self.metrics.show_plan(plan)
        self._wire = Wire(
            model_names=self.config.served_model_names or (plan.model,),
            max_model_len=plan.max_model_len,
            vocab_size=prompts.tokenizer.vocab_size,
            embedding_size=self.service.hidden_size,
            has_chat_template=prompts.has_chat_template,
        )

    @property
    def wire(self) -> Wire:
        """The model in numbers. Raises ApiError, a 503, where nobody can be served."""
        self.doors.check()
        assert self._wire is not None, "the doors are open"
        return self._wire

    def why_not_ready(self) -> str:
        """A sentence where nobody can be served, else nothing."""
        client = self.service.client
        if self._wire is not None and client.state == "ready":
            return ""
        return f"The engine is not ready: {client.cause}." if client.cause else LOADING

"""The real process of a service with a model that the system gives no memory for some texts."""

from __future__ import annotations

from multiprocessing.connection import Connection

from deadly import Starving

from decompx_fast import DecompX
from decompx_fast.serve.messages import Load
from decompx_fast.serve.worker import work


def starving(connection: Connection, load: Load, number: int) -> None:
    """Explains with the demo model, which gets no memory where a text has the word "dreadful"."""
    explainer = DecompX.demo()
    hook = Starving(explainer.tokenizer.convert_tokens_to_ids("dreadful"))
    explainer.model.bert.embeddings.register_forward_pre_hook(hook, with_kwargs=True)
    DecompX.demo = staticmethod(lambda **settings: explainer)
    work(connection, load, number)

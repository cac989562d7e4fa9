"""Attribution methods for what a causal language model says: a score for each token that it has read.

What is explained is a sum over the tokens of an output, each read at the position before it: of their logits, of logits
less the mean over the vocabulary or less another logit, or of log-probabilities. The methods are those that
:mod:`decompx_fast.evaluation` has for classes, with the same choices; scores are signed but for attention's. A sequence
classifier is a model that says one token, at the position that its head reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from decompx_fast import DecompX
from decompx_fast.evaluation.linearized import attention_of, rollout, with_residual
from decompx_fast.evaluation.methods.gradients import STEPS
from decompx_fast.evaluation.methods.relevance import forward as relevance_forward
from decompx_fast.evaluation.methods.relevance import head as relevance_head
from decompx_fast.linearize.linearization import linearize, specification

#: ``nothing``: logits; ``mean``: each less the mean of all at its position; ``other``: less another token's; ``all``:
#: log-probabilities.
Against = Literal["nothing", "mean", "other", "all"]


@dataclass(frozen=True)
class Said:
    """Outputs of a language model, and what of them is explained.

    Attributes:
        prompts: token ids ``[b, n]``.
        outputs: the token ids that follow, ``[b, t]``.
        against: what the logits of the outputs' tokens are taken with.
        others: the other tokens, ``[b]``, of outputs of one token.
    """

    prompts: Tensor
    outputs: Tensor
    against: Against = "nothing"
    others: Tensor | None = None

    @property
    def fed(self) -> Tensor:
        """What the model reads, ``[b, i]``: all but the last token of each output."""
        return torch.cat([self.prompts, self.outputs[:, :-1]], 1)

    def value(self, logits: Tensor) -> Tensor:
        """What is explained, ``[b]``, from the logits ``[b, t, C]`` at the positions before the outputs' tokens."""
        own = logits.gather(-1, self.outputs.unsqueeze(-1)).squeeze(-1)
        if self.against == "mean":
            own = own - logits.mean(-1)
        elif self.against == "all":
            own = own - logits.logsumexp(-1)
        elif self.others is not None:
            own = own - logits.gather(-1, self.others[:, None, None]).squeeze(-1)
        return own.sum(-1)


#: From a model and what it said to the scores ``[b, i]`` of what it read, float64.
Scores = Callable[[nn.Module, Said], Tensor]


def is_classifier(model: nn.Module) -> bool:
    return type(model).__name__.endswith("ForSequenceClassification")


def logits_of(model: nn.Module, count: int, **inputs: Tensor) -> Tensor:
    """The logits ``[b, t, C]`` at the last ``count`` positions, or those of a classifier."""
    if is_classifier(model):
        return model(**inputs).logits.unsqueeze(1)  # type: ignore[no-any-return]
    return model(**inputs, logits_to_keep=count, use_cache=False).logits  # type: ignore[no-any-return]


def positions_of(model: nn.Module, said: Said) -> list[int]:
    """Where outputs are read: a classifier's first position, or those before the tokens."""
    n = said.fed.shape[1]
    return [0] if is_classifier(model) else list(range(n - said.outputs.shape[1], n))


def log_probabilities(model: nn.Module, texts: Sequence[Tensor], output: Tensor) -> Tensor:
    """Of an output ``[t]`` after each of some texts ``[i]``, of any lengths, that end with all but its last token: the
    sum, ``[b]``. One batch, padded on the left, which a decoder's relative positions do not feel."""
    longest = max(map(len, texts))
    ids = torch.zeros(len(texts), longest, dtype=torch.int64)
    mask = torch.zeros_like(ids)
    for row, text in enumerate(texts):
        ids[row, longest - len(text) :], mask[row, longest - len(text) :] = text, 1
    with torch.no_grad():
        logits = logits_of(model, len(output), input_ids=ids, attention_mask=mask).float()
    return Said(ids, output.expand(len(ids), -1), "all").value(logits).double()


def _embedding(model: nn.Module, said: Said) -> Tensor:
    embed: Any = model.get_input_embeddings()  # type: ignore[operator]
    with torch.no_grad():
        return embed(said.fed)  # type: ignore[no-any-return]


def _gradient(model: nn.Module, said: Said, scale: float) -> tuple[Tensor, Tensor]:
    """The word embeddings ``[b, i, d]``, and the gradient by them where they are scaled."""
    embedding = _embedding(model, said)
    scaled = (scale * embedding).requires_grad_()
    with torch.enable_grad():
        value = said.value(logits_of(model, said.outputs.shape[1], inputs_embeds=scaled))
        (gradient,) = torch.autograd.grad(value.sum(), scaled)
    return embedding, gradient


def gradient_x_input(model: nn.Module, said: Said) -> Tensor:
    """``e[k] . g[k]``, ``e`` the word embedding and ``g`` the gradient by it."""
    embedding, gradient = _gradient(model, said, 1.0)
    return (embedding * gradient).sum(-1).double()


def integrated_gradients(model: nn.Module, said: Said) -> Tensor:
    """The same with the gradient's mean over the way from 0, by the midpoint rule in as many steps as the evaluation
    of classifiers takes."""
    found = [_gradient(model, said, (step + 0.5) / STEPS) for step in range(STEPS)]
    mean = torch.stack([gradient for _, gradient in found]).mean(0)
    return (found[0][0] * mean).sum(-1).double()


def attn_lrp(model: nn.Module, said: Said) -> Tensor:
    """Relevance by the rules of AttnLRP, at the output of the embedding block."""
    spec, linearization = specification(model), linearize(model, {"input_ids": said.fed})
    with torch.enable_grad():
        x = linearization.embedding.clone().requires_grad_()
        state = relevance_forward(spec.layers, x, linearization.contexts)
        rows = state[:, positions_of(model, said)]  # [b, t, d]
        logits = relevance_head(spec.head, rows.flatten(0, 1)).unflatten(0, rows.shape[:2])
        (gradient,) = torch.autograd.grad(said.value(logits).sum(), x)
    return (x.detach() * gradient).sum(-1).double()


def attention_rollout(model: nn.Module, said: Said) -> Tensor:
    """The rows of the positions that say the output, their mean, in the product of ``0.5 A + 0.5 I``."""
    linearization = linearize(model, {"input_ids": said.fed})
    matrices = [
        with_residual(attention_of(layer)[0].pattern.weights().mean(1).detach()) for layer in linearization.layers()
    ]
    return torch.stack([rollout(matrices, position) for position in positions_of(model, said)]).mean(0)


def occlusion(model: nn.Module, said: Said) -> Tensor:
    """What the value loses without the token: there is no mask token, so it is taken out. Of the prompts' tokens; those
    of the outputs have 0."""
    fed, n, t = said.fed, said.prompts.shape[1], said.outputs.shape[1]
    scores = torch.zeros(fed.shape, dtype=torch.float64)
    with torch.no_grad():
        whole = said.value(logits_of(model, t, input_ids=fed))
        for k in range(n):
            without = torch.cat([fed[:, :k], fed[:, k + 1 :]], 1)
            scores[:, k] = (whole - said.value(logits_of(model, t, input_ids=without))).double()
    return scores


def occlusion_by_zero(model: nn.Module, said: Said) -> Tensor:
    """What the value loses where the token's word embedding is 0, for models to which it matters where tokens are."""
    scores = torch.zeros(said.fed.shape, dtype=torch.float64)
    with torch.no_grad():
        embedding = _embedding(model, said)
        whole = said.value(logits_of(model, said.outputs.shape[1], inputs_embeds=embedding))
        for k in range(said.fed.shape[1]):
            without = embedding.clone()
            without[:, k] = 0
            found = said.value(logits_of(model, said.outputs.shape[1], inputs_embeds=without))
            scores[:, k] = (whole - found).double()
    return scores


def random_scores(model: nn.Module, said: Said) -> Tensor:
    """Drawn from a normal distribution, by what is read: the same at each run."""
    generator = torch.Generator().manual_seed(int(said.fed.sum()))
    return torch.randn(said.fed.shape, dtype=torch.float64, generator=generator)


def decompx(**options: Any) -> Scores:
    """DecompX with these options."""

    def score(model: nn.Module, said: Said) -> Tensor:
        if said.against == "all":
            raise ValueError("a log-probability is no sum of logits")
        explainer, prompts = DecompX(model), said.prompts.tolist()
        own = {"batch_size": len(prompts), **options}
        if is_classifier(model) or said.others is not None:
            return _of_columns(explainer, said, own)
        contrast = "mean" if said.against == "mean" else None
        found = explainer.explain(prompts, continuation=said.outputs.tolist(), answer="sum", contrast=contrast, **own)
        return torch.stack([one.scores[: said.fed.shape[1], 0] for one in found]).double()

    return score


def _of_columns(explainer: DecompX, said: Said, options: dict[str, Any]) -> Tensor:
    """Of outputs of one token: a column for each that is asked of any text, or for all classes."""
    targets: list[int] | None = None
    if said.others is not None:
        targets = sorted({*said.outputs.flatten().tolist(), *said.others.tolist()})
    found = explainer.explain(said.prompts.tolist(), targets=targets, **options)
    scores = torch.stack([one.scores for one in found]).double()  # [b, i, m]
    columns = list(range(scores.shape[-1])) if targets is None else targets

    def column(tokens: Tensor) -> Tensor:
        places = torch.tensor([columns.index(token) for token in tokens.tolist()])
        return scores[torch.arange(len(scores)), :, places]

    own = column(said.outputs[:, 0])
    if said.others is not None:
        return own - column(said.others)
    return own - scores.mean(-1) if said.against == "mean" else own


@contextmanager
def frozen(model: nn.Module) -> Iterator[None]:
    """No gradients of weights, which no method needs, while the context lasts."""
    states = [parameter.requires_grad for parameter in model.parameters()]
    model.requires_grad_(False)
    try:
        yield
    finally:
        for parameter, state in zip(model.parameters(), states, strict=True):
            parameter.requires_grad_(state)

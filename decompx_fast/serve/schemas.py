"""What requests hold, and what answers do: checked before anything waits, and shown in the OpenAPI description."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from ..config import (
    Aggregation,
    Approximation,
    BiasRule,
    GateRule,
    SplitRule,
    TanhApproximation,
    Variant,
)

#: A text, or a pair of texts.
OneText = (
    Annotated[str, StringConstraints(min_length=1)]
    | Annotated[list[Annotated[str, StringConstraints(min_length=1)]], Field(min_length=2, max_length=2)]
)

Target = str | int | dict[str, float]
Place = str | int | Annotated[list[int], Field(min_length=2, max_length=3)]

#: Tokens that a language model may be asked to write for one explanation.
MOST_WRITTEN = 256

#: Steps of a path; each costs about four passes of the model for every column. "auto" takes 93 at the most, all rounds.
#: A search, whose price grows with the tokens, is not offered.
MOST_STEPS = 64


class Options(BaseModel):
    """How texts are explained: arguments of ``DecompX.explain`` by the same names, which its documentation says more
    of. What is not given is as the service was configured."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    bias: BiasRule | None = Field(default=None, description="How biases are shared among the tokens.")
    bias_token_split: SplitRule | None = None
    variant: Variant | None = None
    activation: Approximation | None = None
    tanh: TanhApproximation | None = None
    gate: GateRule | None = None
    ln1: bool | None = None
    ffn: bool | None = None
    ln2: bool | None = None
    head: bool | None = None
    aggregation: Aggregation | None = None
    row_normalize: bool | None = None
    targets: Target | list[Target] | None = Field(
        default=None, description="Classes by name or index, or weights of classes."
    )
    at: int | str | list[Place] | None = Field(
        default=None,
        description="Places of models that answer at positions; a span of characters is a list inside the list.",
    )
    top_k: Annotated[int, Field(ge=1, le=100)] | None = None
    max_answer_tokens: Annotated[int, Field(ge=1)] | None = None
    max_seq_len: Annotated[int, Field(ge=1)] | None = None
    doc_stride: Annotated[int, Field(ge=0)] | None = None
    ignore_labels: list[str] | None = None
    continuation: str | None = Field(default=None, description="Of a language model: what follows the text.")
    generate: Annotated[int, Field(ge=1, le=MOST_WRITTEN)] | None = None
    contrast: Literal["mean"] | None = None
    answer: Literal["tokens", "sum", "both"] | None = None
    sources: Literal["token", "word", "sentence", "focus"] | None = None
    focus: Annotated[int, Field(ge=1)] | None = Field(
        default=None, description="With focus as sources, so many tokens by themselves."
    )
    truncate: bool | None = Field(default=None, description="Cut a text that is too long for the model.")
    engine: Literal["auto", "forward", "adjoint"] | None = None
    dtype: Literal["float64", "float32", "bfloat16", "float16"] | None = None
    check: Literal["standard", "thorough"] | None = None
    steps: Annotated[int, Field(ge=1, le=MOST_STEPS)] | Literal["auto"] | None = Field(
        default=None,
        description="Average over texts without the most important tokens, and without random ones: so many of each, "
        "or auto, as many as it takes until the scores stay.",
    )
    baseline: Literal["mask", "pad", "remove"] | None = None
    seed: Annotated[int, Field(ge=0)] | None = Field(default=None, description="Of the tokens drawn with steps.")

    def arguments(self) -> dict[str, Any]:
        """Those that are given, as :meth:`DecompX.explain_iter` takes them."""
        found = self.model_dump(exclude_none=True)
        if isinstance(found.get("at"), list):
            found["at"] = [tuple(place) if isinstance(place, list) else place for place in found["at"]]
        return found


class ExplainRequest(BaseModel):
    """Texts to be explained."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{"texts": ["A joy to watch."], "options": {"bias": "equal"}}]},
    )

    model: str | None = Field(default=None, description="Its name; may be left out where the service has one model.")
    texts: Annotated[list[OneText], Field(min_length=1)] = Field(description="Each a text, or a pair as a list of two.")
    options: Options = Options()
    words: bool = Field(default=False, description="Merge the tokens of each word.")
    details: bool = Field(default=False, description="With what biases add at each place, and what components carry.")
    on_error: Literal["raise", "skip"] = Field(
        default="raise",
        description="Refuse the request for a text that cannot be explained, or put its error in its place.",
    )


class ErrorDetail(BaseModel):
    """What was wrong."""

    type: str = Field(description="The name of the error's class.")
    message: str = Field(description="What it got, what is allowed and what to do.")
    argument: str | None = Field(default=None, description="Which part of the request, where it is one.")


class ErrorResponse(BaseModel):
    """The form of all errors, but those of paths below ``/v2``, whose protocol has its own."""

    error: ErrorDetail


class ExplainResponse(BaseModel):
    """The explanations in the order of the texts: what ``Explanation.to_dict`` gives, or ``{"error": ...}``."""

    model: str
    explanations: list[dict[str, Any]]


class Instance(BaseModel):
    """A text with what it is compared or read with."""

    model_config = ConfigDict(extra="forbid")

    text: Annotated[str, StringConstraints(min_length=1)]
    text_pair: Annotated[str, StringConstraints(min_length=1)] | None = None


class V1Request(BaseModel):
    """KServe's protocol V1, ``:explain``."""

    model_config = ConfigDict(extra="forbid")

    instances: Annotated[list[OneText | Instance], Field(min_length=1)] | None = None
    inputs: Annotated[list[OneText | Instance], Field(min_length=1)] | None = Field(
        default=None, description="Another name of instances."
    )
    parameters: Options = Options()


class V1Response(BaseModel):
    """What the model says of each instance, and why."""

    predictions: list[dict[str, Any]]
    explanations: list[dict[str, Any]]


class V1Models(BaseModel):
    """The names of all models."""

    models: list[str]


class Ready(BaseModel):
    """Whether a model can answer."""

    name: str
    ready: bool


class V2Server(BaseModel):
    """Open Inference Protocol: what the server is."""

    name: str
    version: str
    extensions: list[str]


class V2Live(BaseModel):
    """Open Inference Protocol: whether the server is alive."""

    live: bool


class V2Ready(V2Live):
    """Open Inference Protocol: whether all models can answer."""

    ready: bool


class V2TensorMetadata(BaseModel):
    """Open Inference Protocol: a tensor's name and form; -1 for an axis of any length."""

    name: str
    datatype: str
    shape: list[int]


class V2Model(BaseModel):
    """Open Inference Protocol: what a model takes and gives."""

    name: str
    platform: str
    inputs: list[V2TensorMetadata]
    outputs: list[V2TensorMetadata]


class V2Input(BaseModel):
    """Open Inference Protocol: one input tensor."""

    name: str
    shape: list[Annotated[int, Field(ge=0)]]
    datatype: str
    parameters: dict[str, str | int | float | bool] = {}
    data: list[Any]


class V2Output(BaseModel):
    """Open Inference Protocol: an output that is asked for."""

    name: str
    parameters: dict[str, str | int | float | bool] = {}


class V2Request(BaseModel):
    """Open Inference Protocol: texts as a tensor; ``parameters`` are the options, and ``words``."""

    id: str | None = None
    parameters: dict[str, str | int | float | bool] = {}
    inputs: Annotated[list[V2Input], Field(min_length=1)]
    outputs: list[V2Output] | None = None


class V2Error(BaseModel):
    """Open Inference Protocol: the form of its errors."""

    error: str

"""An interpreter for LIT, the Learning Interpretability Tool: signed salience of each token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import InputError
from ..optional import import_optional

if TYPE_CHECKING:
    from ..explainer import DecompX


def lit_interpreter(explainer: DecompX, *, text_field: str = "sentence", **arguments: Any) -> Any:
    """An interpreter for ``lit_nlp``'s server: ``Server(models, datasets, interpreters={"DecompX": ...})``.

    It explains the explainer's own model, whatever model it is shown beside: the predicted class of each text, or,
    where the interface's configuration names one, that class. Scores are signed and not normalised; they add up to the
    logit.

    Args:
        explainer: of a classifier of texts, with its tokenizer.
        text_field: of a data set's examples, that which holds the text.
        **arguments: of :meth:`DecompX.explain`, such as ``bias="none"``.

    Raises:
        MissingPackageError: if lit-nlp is not installed.
    """
    components = import_optional("lit_nlp.api.components", "lit_interpreter()")
    dtypes = import_optional("lit_nlp.api.dtypes", "lit_interpreter()")
    types = import_optional("lit_nlp.api.types", "lit_interpreter()")

    class DecompXInterpreter(components.Interpreter):  # type: ignore[name-defined]
        """DecompX: what each token contributed to the logit, exactly."""

        def run(
            self,
            inputs: Sequence[Mapping[str, Any]],
            model: Any,
            dataset: Any,
            model_outputs: Any = None,
            config: Mapping[str, Any] | None = None,
        ) -> list[dict[str, Any]]:
            """One ``TokenSalience`` for each example; see the base class."""
            target = (config or {}).get(TARGET) or None
            texts = [_text(example, text_field, number) for number, example in enumerate(inputs)]
            explained = explainer.explain(texts, **arguments) if texts else []
            found = []
            for one in explained:
                column = one.column(target)
                tokens = [one.source_text(k) for k in range(len(one))]
                salience = dtypes.TokenSalience(tokens, one.scores[:, column].numpy())
                found.append({f"DecompX: {one.targets[column]}": salience})
            return found

        def is_compatible(self, model: Any, dataset: Any) -> bool:
            """Whether the data set's examples have the field of the texts."""
            return text_field in dataset.spec()

        def config_spec(self) -> dict[str, Any]:
            """What can be chosen in the interface: the class."""
            return {TARGET: types.String(default="", required=False)}

        def meta_spec(self) -> dict[str, Any]:
            """Signed salience of tokens."""
            return {"saliency": types.TokenSalience(autorun=False, signed=True)}

    return DecompXInterpreter()


#: In the interface: the class that is explained; empty: the predicted one.
TARGET = "Class"


def _text(example: Mapping[str, Any], field: str, number: int) -> str:
    if not isinstance(example.get(field), str):
        raise InputError(
            f"example {number} has no text in the field {field!r}, only {', '.join(map(repr, example))}: name the "
            "field by lit_interpreter(..., text_field=...)"
        )
    return str(example[field])

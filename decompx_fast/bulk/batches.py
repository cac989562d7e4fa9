"""Explanations of tables of rows, as distributed engines hand them around: columns in, columns out."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Literal

import torch

from ..errors import InputError, OptionError
from ..explainer import DecompX
from ..optional import import_optional
from ..request.tables import Columns, Row
from ..result.explanation import Explanation
from ..result.failure import Failure
from .parts import COLUMNS, OF_THE_ROW, outcome_of, schema_of
from .units import Item, item_of
from .worker import Task, Worker

#: The columns that are added, each with its type (Arrow's name of it), whatever the task and the lengths.
ADDED = {name: kind for name, kind in COLUMNS.items() if name not in OF_THE_ROW}


class Explainer:
    """Adds to each row of a batch what its tokens contributed.

    Args:
        model: a folder or the id of a hub, which each node can reach; an explainer, which is sent to them; ``None`` for
            the demo model.
        text_column: of the texts; ``None``: ``text``, or ``sentence``.
        pair_column: of the second texts of pairs.
        id_column: what names a row in messages.
        words: merge the tokens of each word.
        prefix: before the names of the columns that are added, where the dataset has columns of these names.
        on_error: what becomes of a row that cannot be explained: ``"skip"`` leaves all columns null but for ``error``
            and ``error_type``; ``"raise"`` ends the dataset's execution.
        device: where to compute; ``None``: the GPU that Ray gives the actor (``num_gpus=1``), or else the CPU.
        task: which head to load, as for :meth:`DecompX.from_pretrained`.
        **arguments: of :meth:`DecompX.explain_iter`.

    Raises:
        DecompXError: if the model cannot be loaded, or an argument cannot be used.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | DecompX | None = None,
        *,
        text_column: str | None = None,
        pair_column: str | None = None,
        id_column: str | None = None,
        words: bool = False,
        prefix: str = "",
        on_error: Literal["skip", "raise"] = "skip",
        device: str | None = None,
        task: str | None = None,
        **arguments: Any,
    ) -> None:
        if on_error not in ("skip", "raise"):
            raise OptionError(f"on_error={on_error!r}: use 'skip' or 'raise'")
        if device is None and not isinstance(model, DecompX) and torch.cuda.is_available():
            device = "cuda"
        self._names = {"text": text_column, "pair": pair_column, "id": id_column}
        self._prefix = prefix
        self._worker = Worker(
            Task(
                model=model if model is None or isinstance(model, DecompX) else os.fspath(model),
                load={} if task is None else {"task": task},
                arguments={name: value for name, value in arguments.items() if value is not None},
                words=words,
                stop=on_error == "raise",
                devices=() if device is None else (device,),
            )
        )

    def __call__(self, batch: Any) -> Any:
        """Explain a batch, of which equally long texts are computed together.

        Args:
            batch: a mapping of names to NumPy arrays, a table of Arrow (``batch_format="pyarrow"``, which keeps the
                types of all columns as they are), or a data frame of pandas; it is not changed.

        Returns:
            ``pyarrow.Table``: the columns of the batch, then those of :data:`ADDED`, with the same types for each
            batch.

        Raises:
            OptionError: if there is no column of texts, or a column has a name that is added.
            InputError: with ``on_error="raise"``, for the first row that cannot be explained.
        """
        arrow = import_optional("pyarrow", "decompx_fast.ray", extra="ray")
        table = _table(batch)
        twice = [name for name in table.column_names if name in {self._prefix + added for added in ADDED}]
        if twice:
            raise OptionError(
                f"prefix={self._prefix!r}: the dataset has columns named {', '.join(twice)}, as the results have: give "
                "another, as prefix='decompx_'"
            )
        records = self._worker.records(self._items(table), alone=True)
        schema = schema_of({})
        for name in ADDED:
            cells = arrow.array([record[name] for record in records], schema.field(name).type)
            table = table.append_column(self._prefix + name, cells)
        return table

    def _items(self, table: Any) -> tuple[Item, ...]:
        """The texts of a batch."""
        if not table.num_rows:
            return ()
        first = Row("the batch", "row", 0, dict.fromkeys(table.column_names))
        columns = Columns.choose(first, **self._names)
        wanted = {name for name in (columns.text, columns.pair, columns.id) if name is not None}
        rows = table.select(sorted(wanted)).to_pylist()
        return tuple(item_of(n, Row("the batch", "row", n, values), columns) for n, values in enumerate(rows))


def explanation_of(row: Mapping[str, Any], *, prefix: str = "") -> Explanation | Failure:
    """The result of one row, as an object.

    Args:
        row: of a dataset that :class:`Explainer` has added to, as ``Dataset.iter_rows()`` gives it, or as a part of
            Parquet has it.
        prefix: as for :class:`Explainer`.

    Raises:
        InputError: if the columns are not there, or damaged.
    """
    missing = [prefix + name for name in ADDED if prefix + name not in row]
    if missing:
        raise InputError(f"the row has no columns {', '.join(missing[:5])}: give one that Explainer has added to")
    values = {name: _listed(row[prefix + name]) for name in ADDED}
    return outcome_of({**dict.fromkeys(OF_THE_ROW), "row": 0, **values})


def _listed(value: Any) -> Any:
    """Lists in the place of the arrays that Ray makes of them."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    return [_listed(one) for one in value] if isinstance(value, list) else value


def _table(batch: Any) -> Any:
    arrow = import_optional("pyarrow", "decompx_fast.ray", extra="ray")
    if isinstance(batch, arrow.Table):
        return batch
    if isinstance(batch, Mapping):  # as Ray itself does it, which has types for columns of tensors too
        return import_optional("ray.data.block", "decompx_fast.ray", extra="ray").BlockAccessor.batch_to_arrow_block(
            batch
        )
    return arrow.Table.from_pandas(batch, preserve_index=False)

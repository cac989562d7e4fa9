"""Explanations of a dataset of Ray: a class for ``Dataset.map_batches``, which loads the model once in each actor.

    import ray
    from decompx_fast.ray import Explainer

    rows = ray.data.read_parquet("reviews/")
    explained = rows.map_batches(
        Explainer,
        fn_constructor_kwargs={"model": "path/to/model", "text_column": "review", "bias": "none"},
        batch_size=1024,
        compute=ray.data.ActorPoolStrategy(size=8),
    )
    explained.write_parquet("explained/")

Ray's own checkpoints go with it: with ``ray.data.DataContext.get_current().checkpoint_config`` set to a
``CheckpointConfig(id_column=...)``, rows that were written are not explained again.
"""

from .bulk.batches import ADDED, Explainer, explanation_of

__all__ = ["ADDED", "Explainer", "explanation_of"]

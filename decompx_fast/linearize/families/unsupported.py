"""Architectures that cannot be explained exactly, and why: what the error of a refused model says."""

from __future__ import annotations

#: Reasons that several architectures share.
_CHOSEN_POSITIONS = (
    "each position attends only some others, chosen in blocks or by hashes, which cannot be described yet"
)
_APPROXIMATED = "its attention is approximated, so that it has no weights that sum to 1 over the positions"
_OTHER_INPUTS = "it reads more than a text (a page's layout, a table, entities), and that would need scores as well"

_SQUAD = (
    "its head looks for the end of an answer by the start that it found, so that its outputs are no function of a "
    "position alone; the class that ends in Simple can be explained"
)
_MERGED_PATCHES = "it merges neighbouring patches between layers, so that positions are no patches any more"
_BOTH_STATES = (
    "it has no head: for vectors of texts load the encoder alone (T5EncoderModel), for what it writes "
    "ForConditionalGeneration"
)
_CONVOLVED = "it is made of convolutions over a picture, which are no layers of a Transformer"

#: Why not, by the name of the class in transformers.
UNSUPPORTED: dict[str, str] = {
    "BartModel": _BOTH_STATES,
    "BigBirdForQuestionAnswering": (
        "its head is a network of its own with a residual connection, and hides the question's tokens from the answer"
    ),
    "BigBirdPegasusForConditionalGeneration": _CHOSEN_POSITIONS,
    "BigBirdPegasusForSequenceClassification": _CHOSEN_POSITIONS,
    "CanineForSequenceClassification": "it shortens the sequence of characters and lengthens it again between layers",
    "ConvBertForSequenceClassification": (
        "half of its heads are convolutions whose kernels it computes from the text, which are no attention weights"
    ),
    "FlaubertForQuestionAnswering": _SQUAD,
    "FNetForSequenceClassification": "it mixes positions and features by a Fourier transform, which is no attention",
    "FunnelForSequenceClassification": "it pools the sequence between layers, so that positions are no tokens any more",
    "Gemma3ForSequenceClassification": "it reads pictures as well: use Gemma3TextForSequenceClassification",
    "IBertForSequenceClassification": "its maps and norms are those of integer arithmetic",
    "LEDForConditionalGeneration": (
        "its encoder has a window and global tokens, and its decoder attends it, which together cannot be described yet"
    ),
    "LiltForSequenceClassification": _OTHER_INPUTS,
    "LongT5ForConditionalGeneration": (
        "its encoder attends blocks of neighbours, or means of blocks besides, which cannot be described yet"
    ),
    "LukeForSequenceClassification": _OTHER_INPUTS,
    "MobileBertForMaskedLM": (
        "the map to its vocabulary is put together of two, which would have to be copied; other heads can be explained"
    ),
    "MraForSequenceClassification": _APPROXIMATED,
    "MT5Model": _BOTH_STATES,
    "MvpForConditionalGeneration": "its layers may have learned prompts, which are no tokens of the text",
    "NystromformerForSequenceClassification": _APPROXIMATED,
    "PegasusXForConditionalGeneration": (
        "its encoder has global tokens of its own beside those of the text, which are no sources"
    ),
    "PerceiverForSequenceClassification": "its positions are latent vectors, not tokens",
    "ProphetNetForConditionalGeneration": (
        "its decoder has several streams, one for each of the next tokens that it foretells"
    ),
    "ReformerForSequenceClassification": (
        "its attention hashes positions into buckets at random, and its two residual streams are coupled"
    ),
    "SqueezeBertForSequenceClassification": "its maps are grouped convolutions, which cannot be read as linear yet",
    "SwitchTransformersForConditionalGeneration": (
        "what an expert has no room for is dropped, so that what becomes of a text depends on its batch"
    ),
    "T5Model": _BOTH_STATES,
    "TapasForSequenceClassification": _OTHER_INPUTS,
    "UMT5Model": _BOTH_STATES,
    "XLMForQuestionAnswering": _SQUAD,
    "XLNetForSequenceClassification": (
        "its attention keeps its weights in no linear layers, adds segments and positions to its logits, and the first "
        "axis of its states is the position"
    ),
    "YosoForSequenceClassification": _APPROXIMATED,
    "ConvNextForImageClassification": _CONVOLVED,
    "ConvNextV2ForImageClassification": _CONVOLVED,
    "CvtForImageClassification": "its queries, keys and values are convolutions over neighbouring patches",
    "DonutSwinForImageClassification": _MERGED_PATCHES,
    "EfficientNetForImageClassification": _CONVOLVED,
    "HieraForImageClassification": _MERGED_PATCHES,
    "MobileNetV1ForImageClassification": _CONVOLVED,
    "MobileNetV2ForImageClassification": _CONVOLVED,
    "PvtForImageClassification": _MERGED_PATCHES,
    "ResNetForImageClassification": _CONVOLVED,
    "SegformerForImageClassification": _MERGED_PATCHES,
    "SwinForImageClassification": _MERGED_PATCHES,
    "Swinv2ForImageClassification": _MERGED_PATCHES,
}

"""Architectures that cannot be explained exactly, and why: what the error of a refused model says."""

from __future__ import annotations

#: Reasons that several architectures share.
_CHOSEN_POSITIONS = (
    "each position attends only some others, chosen in blocks or by hashes, which cannot be described yet"
)
_APPROXIMATED = "its attention is approximated, so that it has no weights that sum to 1 over the positions"
_OTHER_INPUTS = "it reads more than a text (a page's layout, a table, entities), and that would need scores as well"

_SQUAD = (
    "the logit of an answer's end is made of the states at two positions at once, the end's and that of a start that a "
    "search found before, so that it is no output at a position; the class that ends in Simple can be explained"
)
_MERGED_PATCHES = "it merges neighbouring patches between layers, so that positions are no patches any more"
_LATENT = "its positions are latent vectors, not patches"
_CONVOLVED_BETWEEN = "convolutions over neighbouring patches stand between its layers"
_CUT_BEFORE = (
    "its processor cuts pictures into patches and pads them, each with a size of its own, which cannot be read yet"
)
_SQUEEZED = "it pools frames before its layers and draws them apart again after them"
_CONFORMER = "convolutions over neighbouring frames, with gates and batch norms, stand in its layers"
_OTHER_TOWERS = "its two encoders cannot be described yet: those of CLIP, MetaCLIP 2 and SigLIP can"
_BOTH_STATES = (
    "it has no head: for vectors of texts load the encoder alone (T5EncoderModel), for what it writes "
    "ForConditionalGeneration"
)
_CONVOLVED = "it is made of convolutions over a picture, which are no layers of a Transformer"

#: Why not, by the name of the class in transformers: classifiers of sounds.
SOUNDS: dict[str, str] = {
    "Data2VecAudioForSequenceClassification": (
        "five convolutions in a row, with norms between them, say where frames are, so that each is made of a hundred "
        "others before the first attention"
    ),
    "SEWForSequenceClassification": _SQUEEZED,
    "SEWDForSequenceClassification": _SQUEEZED,
    "Wav2Vec2BertForSequenceClassification": _CONFORMER,
    "Wav2Vec2ConformerForSequenceClassification": _CONFORMER,
}

#: Why not, by the name of the class in transformers: all of them.
UNSUPPORTED: dict[str, str] = {
    "BartModel": _BOTH_STATES,
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
    # classifiers of pictures
    "BitForImageClassification": _CONVOLVED,
    "ConvNextForImageClassification": _CONVOLVED,
    "ConvNextV2ForImageClassification": _CONVOLVED,
    "CvtForImageClassification": "its queries, keys and values are convolutions over neighbouring patches",
    "DinatForImageClassification": _MERGED_PATCHES,
    "DonutSwinForImageClassification": _MERGED_PATCHES,
    "EfficientNetForImageClassification": _CONVOLVED,
    "FocalNetForImageClassification": "it multiplies patches by convolutions of those around them, without attention",
    "HGNetV2ForImageClassification": _CONVOLVED,
    "HieraForImageClassification": _MERGED_PATCHES,
    "ImageGPTForImageClassification": (
        "it reads a picture as a row of numbers of colours, one for each pixel, and its norms are of their own class"
    ),
    "LevitForImageClassification": _MERGED_PATCHES,
    "LevitForImageClassificationWithTeacher": _MERGED_PATCHES,
    "MobileNetV1ForImageClassification": _CONVOLVED,
    "MobileNetV2ForImageClassification": _CONVOLVED,
    "MobileViTForImageClassification": _CONVOLVED_BETWEEN,
    "MobileViTV2ForImageClassification": _CONVOLVED_BETWEEN,
    "PerceiverForImageClassificationConvProcessing": _LATENT,
    "PerceiverForImageClassificationFourier": _LATENT,
    "PerceiverForImageClassificationLearned": _LATENT,
    "PoolFormerForImageClassification": "it pools neighbouring patches in place of attention, and merges them",
    "PPLCNetForImageClassification": _CONVOLVED,
    "PvtForImageClassification": _MERGED_PATCHES,
    "PvtV2ForImageClassification": _MERGED_PATCHES,
    "RegNetForImageClassification": _CONVOLVED,
    "ResNetForImageClassification": _CONVOLVED,
    "SegformerForImageClassification": _MERGED_PATCHES,
    "ShieldGemma2ForImageClassification": "it is a language model that is asked about a picture and a policy",
    "Siglip2ForImageClassification": _CUT_BEFORE,
    "SwiftFormerForImageClassification": _CONVOLVED_BETWEEN,
    "SwinForImageClassification": _MERGED_PATCHES,
    "Swinv2ForImageClassification": _MERGED_PATCHES,
    "TextNetForImageClassification": _CONVOLVED,
    "TimmWrapperForImageClassification": "it wraps a model of timm, whose modules are not those of transformers",
    # models of texts and pictures
    "AlignModel": "its encoder of pictures is made of convolutions, which are no layers of a Transformer",
    "AltCLIPModel": _OTHER_TOWERS,
    "Blip2ForImageTextRetrieval": "it compares a text with several vectors of a picture, and takes the largest cosine",
    "BlipModel": _OTHER_TOWERS,
    "ChineseCLIPModel": _OTHER_TOWERS,
    "CLIPSegModel": _OTHER_TOWERS,
    "Siglip2Model": _CUT_BEFORE,
    "Tipsv2Model": _OTHER_TOWERS,
    "VideoPrismClipModel": "it reads videos",
    **SOUNDS,
}

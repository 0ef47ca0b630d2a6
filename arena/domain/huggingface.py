"""A Hugging Face ``config.json`` read as the shape of a model. Pure: no I/O, no clock.

A model is trained from the start here, so what a file says of a shape is taken over. What the worker does not build
goes to the model's variant, which can be planned; what a variant has no words for is refused. Some families are built a
little otherwise than there: BERT without token types and next-sentence prediction; ViT without a class token, its head
on the mean over patches; ResNet of basic blocks with GroupNorm, activations before convolutions and a 3 x 3 stem at
full resolution (a Wide-ResNet), so that its image size has to be given beside the file.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Mapping
from typing import Any

from arena.domain.configs import decoders, encoders, mixtures
from arena.domain.configs.file import ConfigFile, Fields
from arena.errors import SpecError

_READERS: Mapping[str, Callable[[ConfigFile], Fields]] = {
    "bert": encoders.bert,
    "deepseek": mixtures.deepseek,
    "deepseek_v2": mixtures.deepseek_v2,
    "deepseek_v3": mixtures.deepseek_v3,
    "gpt2": decoders.gpt2,
    "gpt_bigcode": decoders.gpt_bigcode,
    "gpt_neo": decoders.gpt_neo,
    "llama": decoders.llama,
    "mistral": decoders.mistral,
    "mixtral": mixtures.mixtral,
    "mt5": encoders.mt5,
    "opt": decoders.opt,
    "qwen2": decoders.qwen2,
    "qwen2_moe": mixtures.qwen2_moe,
    "qwen3": decoders.qwen3,
    "qwen3_moe": mixtures.qwen3_moe,
    "resnet": encoders.resnet,
    "roberta": encoders.roberta,
    "t5": encoders.t5,
    "vit": encoders.vit,
}


def model_fields_of_config(text: str, source: str) -> dict[str, Any]:
    """Return the fields of a ``ModelSpec`` that a config.json describes.

    Args:
        text: The file's content.
        source: Its name, for errors.

    Raises:
        SpecError: It is no JSON object, describes a type that is not known here, or a feature that is not built.
    """
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SpecError(f"{source} is no JSON", why=str(error)) from error
    if not isinstance(config, dict):
        raise SpecError(f"{source} is no JSON object", why=f"it holds a {type(config).__name__}")
    model_type = config.get("model_type")
    reader = _READERS.get(model_type) if isinstance(model_type, str) else None
    if reader is None:
        close = difflib.get_close_matches(str(model_type), _READERS, n=1)
        fix = f"supported model types: {', '.join(sorted(_READERS))}"
        shown = f"{model_type!r:.80}"
        near = f", did you mean {close[0]!r}?" if close else ""
        raise SpecError(f"{source} describes a model of type {shown}{near}", fix=fix)
    return reader(ConfigFile(values=config, source=source))

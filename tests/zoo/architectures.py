"""Architectures of `transformers`, built small with random weights: each model type of its registry that takes text,
images or sound by one main input.

A configuration is made small by rules on the names of its fields (hidden sizes, layers, heads, vocabulary), in nested
configurations too. A short table has the fields of types whose fields depend on each other. A type that cannot be built or
called by these rules is not in `architectures.txt`; `candidates()` has all of the registry.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

# Fields by name: sizes that every architecture names in one of these ways.
_SMALL: dict[str, Any] = {
    **dict.fromkeys(
        ("hidden_size", "d_model", "n_embd", "dim", "embed_dim", "encoder_hidden_size", "emb_dim"),
        32,
    ),
    **dict.fromkeys(
        ("embedding_size", "word_embed_proj_dim", "decoder_hidden_size", "hidden_dim"), 32
    ),
    **dict.fromkeys(("projection_dim", "projection_size", "d_embed", "vision_embed_dim"), 32),
    "adapter_hidden_size": 32,
    **dict.fromkeys(
        (
            "num_hidden_layers",
            "n_layer",
            "n_layers",
            "num_layers",
            "encoder_layers",
            "decoder_layers",
        ),
        2,
    ),
    **dict.fromkeys(
        ("num_encoder_layers", "num_decoder_layers", "decoder_num_hidden_layers", "num_blocks"), 2
    ),
    **dict.fromkeys(
        ("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads"), 4
    ),
    **dict.fromkeys(
        ("decoder_attention_heads", "num_encoder_attention_heads", "num_decoder_attention_heads"), 4
    ),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads"), 2),
    **dict.fromkeys(
        ("intermediate_size", "d_ff", "n_inner", "ffn_dim", "encoder_ffn_dim", "decoder_ffn_dim"),
        64,
    ),
    **dict.fromkeys(("d_inner", "ff_dim", "feed_forward_size", "moe_intermediate_size"), 64),
    **dict.fromkeys(("d_kv", "head_dim", "d_head"), 8),
    **dict.fromkeys(("vocab_size", "n_vocab", "decoder_vocab_size"), 99),
    **dict.fromkeys(
        ("max_position_embeddings", "n_positions", "max_source_positions", "n_ctx"), 64
    ),
    **dict.fromkeys(("num_local_experts", "n_routed_experts", "num_experts"), 4),
    # Attention by low ranks.
    **dict.fromkeys(("qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"), 8),
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank"), 16),
    "num_experts_per_tok": 2,
    "image_size": 32,
    "num_frames": 4,
    "patch_size": 8,
    "rotary_dim": 8,
}
_DROPOUTS = (
    "dropout",
    "pdrop",
    "drop_prob",
    "drop_rate",
    "drop_path_rate",
    "layerdrop",
    "layer_drop",
    "drop_path",
)
_TOKENS = (
    "pad_token_id",
    "bos_token_id",
    "eos_token_id",
    "decoder_start_token_id",
    "sep_token_id",
    "cls_token_id",
)


# Fields by model type, where the fields of a type depend on each other in a way of its own.
_OF_TYPE: dict[str, dict[str, Any]] = {
    **{
        name: {"rope_parameters": {"mrope_section": [2, 1, 1]}}
        for name in ("qwen2_vl_text", "qwen2_5_vl_text", "glm4v_text", "glm_ocr_text")
    },
    # Mixers that are state spaces: 8 heads of 8 are twice the hidden size.
    **{name: {"mamba_n_heads": 8, "mamba_d_head": 8} for name in ("bamba", "granitemoehybrid")},
    "convnext": {"hidden_sizes": [32, 64], "depths": [1, 1], "num_stages": 2},
    "convnextv2": {"hidden_sizes": [32, 64], "depths": [1, 1], "num_stages": 2},
    "efficientnet": {"hidden_dim": 2560},
    "esm": {"vocab_size": 99, "pad_token_id": 1, "mask_token_id": 2},
    "gemma3n_text": {"num_kv_shared_layers": 0},
    "lilt": {"hidden_size": 48},
    "mamba2": {"num_heads": 8},
    "hunyuan_v1_dense": {"head_dim": 8},
    "hunyuan_v1_moe": {"head_dim": 8},
    "ministral": {"head_dim": 8},
    "nemotron": {"num_key_value_heads": 2},
    "reformer": {
        "attn_layers": ["local", "lsh"],
        "axial_pos_embds_dim": (16, 16),
        "axial_pos_shape": (8, 8),
    },
    "swin": {"depths": [1, 1], "num_heads": [2, 2], "window_size": 2},
    "xmod": {"default_language": "en_XX"},
    "swinv2": {"depths": [1, 1], "num_heads": [2, 2], "window_size": 2},
}
# Models of two towers that take a text and an image side by side.
_TEXT_AND_IMAGE = (
    "altclip",
    "blip",
    "chinese_clip",
    "clip",
    "clipseg",
    "groupvit",
    "metaclip_2",
    "owlv2",
    "owlvit",
    "siglip",
)


@dataclass
class Built:
    model: torch.nn.Module
    inputs: dict[str, torch.Tensor]


def architectures() -> list[str]:
    """Model types that these rules build, as seen with transformers 5.24."""
    return (Path(__file__).parent / "architectures.txt").read_text().split()


def candidates() -> list[str]:
    """Model types of the registry, by the alphabet."""
    from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

    return sorted(MODEL_MAPPING_NAMES)


def build(name: str, seed: int = 0) -> Built:
    """The small model of this type in eval mode and one batch of inputs; raises where the rules do not fit."""
    from transformers import AutoConfig, AutoModel

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = AutoConfig.for_model(name)
        _make_small(config)
        torch.manual_seed(seed)
        model = AutoModel.from_config(config).eval().float()
    return Built(model, _inputs(model, config))


def _make_small(config: Any) -> None:
    for nested in _nested(config):
        _make_small(nested)
    for field in list(vars(config)):
        value = getattr(config, field)
        if field in _SMALL and isinstance(value, int):
            _set(config, field, _SMALL[field])
        elif any(word in field for word in _DROPOUTS) and isinstance(value, float):
            _set(config, field, 0.0)
        elif field == "num_heads" and isinstance(value, (list, tuple)):
            _set(config, field, [2] * len(value))
        elif field in _TOKENS and isinstance(value, int) and value >= _SMALL["vocab_size"]:
            _set(config, field, 1)
    # Names of a configuration's own, which lead to one of the fields above.
    for field in getattr(type(config), "attribute_map", {}):
        if field in _SMALL and isinstance(getattr(config, field, None), int):
            _set(config, field, _SMALL[field])
    if isinstance(getattr(config, "layer_types", None), list):
        _set(config, "layer_types", config.layer_types[: _SMALL["num_hidden_layers"]])
    if hasattr(config, "kv_lora_rank"):  # each head has keys of its own
        _set(config, "num_key_value_heads", _SMALL["num_attention_heads"])
    for field, value in _OF_TYPE.get(config.model_type, {}).items():
        old = getattr(config, field, None)
        _set(config, field, old | value if isinstance(old, dict) else value)
    _set(config, "use_cache", False)


def _set(config: Any, field: str, value: Any) -> None:
    try:
        setattr(config, field, value)
    except (AttributeError, TypeError, ValueError, NotImplementedError):  # a field that is computed
        return


def _nested(config: Any) -> Iterator[Any]:
    from transformers import PretrainedConfig

    for value in vars(config).values():
        if isinstance(value, PretrainedConfig):
            yield value


def _inputs(model: torch.nn.Module, config: Any) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    main = model.main_input_name
    text = getattr(config, "text_config", config)
    vision = getattr(config, "vision_config", config)
    tokens = torch.randint(2, 90, (2, 12), generator=generator)
    if main == "input_ids":
        inputs = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
        if config.model_type in _TEXT_AND_IMAGE:
            inputs |= {"pixel_values": torch.randn(2, 3, 32, 32, generator=generator)}
    elif main == "pixel_values":
        size = getattr(vision, "image_size", 32)
        height, width = (size, size) if isinstance(size, int) else size
        channels = getattr(vision, "num_channels", 3)
        frames = [config.num_frames] if hasattr(config, "num_frames") else []
        shape = (2, *frames, channels, height, width)
        inputs = {"pixel_values": torch.randn(shape, generator=generator)}
        if getattr(config, "text_config", None) is not None:
            inputs |= {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
    elif main == "input_values":
        inputs = {"input_values": torch.randn(2, 2000, generator=generator)}
    elif main == "input_features":
        bins = getattr(config, "num_mel_bins", getattr(config, "feature_size", 80))
        inputs = {"input_features": torch.randn(2, bins, 128, generator=generator)}
    else:
        raise ValueError(f"the main input {main!r} has no rule")
    if getattr(text, "is_encoder_decoder", False) or getattr(config, "is_encoder_decoder", False):
        inputs["decoder_input_ids"] = torch.randint(2, 90, (2, 7), generator=generator)
    return inputs

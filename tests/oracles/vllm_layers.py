"""The cache specifications that vLLM's model classes give their layers, from a configuration.

Used by `vllm_oracle.py`. Classes, calculators and the alignment of blocks are vLLM's own; which
layer gets which specification is stated here, family by family, as vLLM's model files do.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

Case = dict[str, Any]


class Vllm:
    """The modules of one version."""

    def __init__(self, source: Path, version: str) -> None:
        sys.path.insert(0, str(source))
        import torch
        import vllm.v1.core.kv_cache_utils as utils
        import vllm.v1.kv_cache_interface as interface
        from vllm.model_executor.layers.mamba.mamba_utils import MambaStateShapeCalculator

        self.version, self.torch, self.specs, self.utils = version, torch, interface, utils
        self.states = MambaStateShapeCalculator
        self.is_new = version >= "0.33"
        self.planner = utils
        if self.is_new:
            import vllm.v1.core.kv_cache_planning as planner

            self.planner = planner
        self.planner._check_enough_kv_cache_memory = lambda *_: None


_RECURRENT_TYPES = (
    "mamba", "mamba2", "jamba", "lfm2", "nemotron_h", "kimi_linear", "falcon_h1",
)  # fmt: skip


class Build:
    """The cache specifications that one case gives to the layers of a configuration."""

    def __init__(self, vllm: Vllm, case: Case, config: dict[str, Any]) -> None:
        self.vllm, self.case = vllm, case
        self.config = {**config.get("text_config", config)}
        if case["layers"]:
            self.config["num_hidden_layers"] = case["layers"]
        self.tp = case["tp"]
        self.block = case["block_size"]
        torch = vllm.torch
        name = self.config.get("torch_dtype") or self.config.get("dtype")
        name = name or config.get("torch_dtype") or config.get("dtype") or "bfloat16"
        self.model_dtype = getattr(torch, name)
        one_byte = case["kv_dtype"] in ("fp8", "int8_per_token_head", "fp8_ds_mla", "nvfp4")
        self.dtype = torch.uint8 if one_byte else self.model_dtype
        self.quant = vllm.specs.get_kv_quant_mode(case["kv_dtype"])

    def heads(self, total: int) -> int:
        return max(1, total // self.tp)

    def packed(self, spec: Any) -> Any:
        """`spec` as the backend stores it: since 0.33 quantised layouts are the backend's own.

        int8 asks vLLM's Triton backend. FlashInfer's backend imports a compiled package, so its
        rule for nvfp4 is stated here: K and V are head slots of `nvfp4_kv_cache_full_dim` bytes.
        """
        if self.vllm.is_new and self.quant.is_per_token_head:
            from vllm.v1.attention.backends.triton_attn import TritonAttentionBackend

            return TritonAttentionBackend.customize_spec(spec)
        if self.vllm.is_new and self.quant.is_nvfp4:
            from vllm.utils.torch_utils import nvfp4_kv_cache_full_dim as full_dim

            return replace(
                spec,
                num_head_slots=2 * spec.num_kv_heads,
                state_content_bytes=full_dim(spec.head_size),
            )
        return spec

    def attention(self, heads: int, dim: int, v_dim: int | None = None, window: int | None = None,
                  chunk: int | None = None, block: int | None = None) -> Any:  # fmt: skip
        specs = self.vllm.specs
        common: dict[str, Any] = {
            "block_size": block or self.block, "num_kv_heads": self.heads(heads), "head_size": dim,
            "dtype": self.dtype, "kv_quant_mode": self.quant,
        }  # fmt: skip
        if chunk:
            return self.packed(
                specs.ChunkedLocalAttentionSpec(**common, attention_chunk_size=chunk)
            )
        if window:
            spec = specs.SlidingWindowSpec(
                **common, head_size_v=v_dim or dim, sliding_window=window,
            )  # fmt: skip
            return self.packed(spec)
        return self.packed(specs.FullAttentionSpec(**common, head_size_v=v_dim or dim))

    def latent(self, width: int) -> Any:
        name = self.case["kv_dtype"]
        extra: dict[str, Any] = {}
        if self.vllm.is_new and name == "fp8_ds_mla":
            extra["state_content_bytes"] = 656
        return self.vllm.specs.MLAAttentionSpec(
            block_size=self.block, num_kv_heads=1, head_size=width, dtype=self.dtype,
            cache_dtype_str=name, **extra,
        )  # fmt: skip

    def index(self, width: int) -> Any:
        extra: dict[str, Any] = {}
        if self.vllm.is_new:
            extra["cache_role"] = self.vllm.specs.SparseCacheRole.INDEXER
        return self.vllm.specs.MLAAttentionSpec(
            block_size=self.block, num_kv_heads=1, head_size=width + width // 128 * 4,
            dtype=self.vllm.torch.uint8, **extra,
        )  # fmt: skip

    def cross(self, heads: int, dim: int) -> Any:
        return self.vllm.specs.CrossAttentionSpec(
            block_size=self.block, num_kv_heads=self.heads(heads), head_size=dim, dtype=self.dtype
        )

    def state(self, shapes: Any, dtypes: tuple[Any, ...], checkpoint: int = 0) -> Any:
        mode = self.case["mamba_cache_mode"]
        extra = {"num_prefill_checkpoint_blocks": checkpoint} if self.vllm.is_new else {}
        return self.vllm.specs.MambaSpec(
            shapes=tuple(shapes), dtypes=dtypes, mamba_cache_mode=mode,
            block_size=self.case["context"] if mode == "none" else self.block,
            num_speculative_blocks=self.case["num_speculative_tokens"], **extra,
        )  # fmt: skip

    def layers(self) -> list[list[Any]]:
        """For every decoder layer the specifications it registers, in order."""
        c, kind = self.config, self.config["model_type"]
        if kind.startswith(("deepseek_v", "glm_moe_dsa", "kimi_k2")):
            return self._latent_layers()
        if kind in _RECURRENT_TYPES or "linear_num_key_heads" in c:
            return list(self._recurrent_layers())
        if kind == "whisper":
            heads, dim = c["decoder_attention_heads"], c["d_model"] // c["decoder_attention_heads"]
            return [[self.attention(heads, dim), self.cross(heads, dim)]] * c["decoder_layers"]
        return list(self._attention_layers())

    def _latent_layers(self) -> list[list[Any]]:
        c = self.config
        layer = [self.latent(c["kv_lora_rank"] + c["qk_rope_head_dim"])]
        if "index_head_dim" in c:
            layer.append(self.index(c["index_head_dim"]))
        extra = c.get("num_nextn_predict_layers", 0) if self.case["mtp"] else 0
        return [layer] * (c["num_hidden_layers"] + extra)

    def _recurrent_layers(self) -> Iterator[list[Any]]:
        c, kind = self.config, self.config["model_type"]
        spec_tokens, states = self.case["num_speculative_tokens"], self.vllm.states
        n = c["num_hidden_layers"]
        model, float32 = self.model_dtype, self.vllm.torch.float32
        new = self.vllm.is_new
        if kind == "mamba":
            shapes = states.mamba1_state_shape(
                self.tp, c["intermediate_size"], c["state_size"], c["conv_kernel"]
            )
            dtypes, marks, checkpoint = (model, model), "M" * n, 0
        elif kind == "jamba":
            shapes = states.mamba1_state_shape(
                self.tp, c["mamba_expand"] * c["hidden_size"], c["mamba_d_state"],
                c["mamba_d_conv"],
            )  # fmt: skip
            dtypes, checkpoint = (model, model), 0
            period, offset = c["attn_layer_period"], c["attn_layer_offset"]
            marks = "".join("*" if i % period == offset else "M" for i in range(n))
        elif kind == "mamba2":
            shapes = states.mamba2_state_shape(
                self.tp, c["num_heads"] * c["head_dim"], c["n_groups"], c["num_heads"],
                c["head_dim"], c["state_size"], c["conv_kernel"],
            )  # fmt: skip
            dtypes, marks, checkpoint = (model, model), "M" * n, int(new)
        elif kind == "nemotron_h":
            shapes = states.mamba2_state_shape(
                self.tp, c["mamba_num_heads"] * c["mamba_head_dim"], c["n_groups"],
                c["mamba_num_heads"], c["mamba_head_dim"], c["ssm_state_size"], c["conv_kernel"],
                spec_tokens,
            )  # fmt: skip
            dtypes, marks, checkpoint = (model, float32), c["hybrid_override_pattern"], int(new)
        elif kind == "falcon_h1":
            shapes = states.mamba2_state_shape(
                self.tp, c["mamba_d_ssm"], c["mamba_n_groups"], c["mamba_n_heads"],
                c["mamba_d_head"], c["mamba_d_state"], c["mamba_d_conv"],
                spec_tokens if new else 0,
            )  # fmt: skip
            dtypes, marks, checkpoint = (model, model), "+" * n, int(new)
        elif kind == "kimi_linear":
            linear = c["linear_attn_config"]
            shapes = states.kda_state_shape(
                self.tp, linear["num_heads"], linear["head_dim"],
                conv_kernel_size=linear["short_conv_kernel_size"], num_spec=spec_tokens,
            )  # fmt: skip
            dtypes, checkpoint = (*(model for _ in shapes[1:]), float32), 0
            marks = "".join("*" if i + 1 in linear["full_attn_layers"] else "M" for i in range(n))
        elif kind == "lfm2":
            shapes = states.short_conv_state_shape(self.tp, c["conv_dim"], c["conv_L_cache"])
            dtypes, checkpoint = (model,), 0
            marks = "".join("*" if i in c["full_attn_idxs"] else "M" for i in range(n))
        else:
            shapes = states.gated_delta_net_state_shape(
                self.tp, c["linear_num_key_heads"], c["linear_num_value_heads"],
                c["linear_key_head_dim"], c["linear_value_head_dim"], c["linear_conv_kernel_dim"],
                spec_tokens,
            )  # fmt: skip
            ssm = self.case["ssm_dtype"] if self.case["ssm_dtype"] != "auto" else None
            ssm = ssm or c.get("mamba_ssm_dtype") or str(model).split(".")[1]
            dtypes = (model, getattr(self.vllm.torch, ssm))
            checkpoint = int(self.case["flashinfer_delta"])
            period = c["full_attention_interval"]
            marks = "".join("M" if (i + 1) % period else "*" for i in range(n))
        heads = c.get("num_key_value_heads", 0)
        dim = c.get("attention_head_dim") or c.get("head_dim")
        latent = c["kv_lora_rank"] + c["qk_rope_head_dim"] if "kv_lora_rank" in c else 0
        if set(marks) & {"*", "+"}:
            dim = latent or dim or c["hidden_size"] // c["num_attention_heads"]
            self._raise_block(1 if latent else heads, dim, shapes, dtypes, latent=bool(latent))
        state = self.state(shapes, dtypes, checkpoint)

        def attend() -> Any:
            return self.latent(latent) if latent else self.attention(heads, dim)

        kept = {"M": lambda: [state], "*": lambda: [attend()], "+": lambda: [attend(), state]}
        for mark in marks:
            yield kept[mark]() if mark in kept else []
        for _ in range(self.case["mtp"] + self.case["eagle_layers"]):
            yield [self.attention(heads, dim)]

    def _raise_block(
        self, heads: int, dim: int, shapes: Any, dtypes: tuple[Any, ...], *, latent: bool
    ) -> None:
        """vLLM's own alignment of attention blocks and state pages, on a FlashAttention backend."""
        from vllm.model_executor.models import ModelRegistry
        from vllm.platforms.interface import Platform
        from vllm.v1.attention.backend import MultipleOf

        cache = SimpleNamespace(
            cache_dtype=self.case["kv_dtype"], block_size=self.block,
            mamba_cache_mode=self.case["mamba_cache_mode"], mamba_block_size=None,
            user_specified_mamba_block_size=False, mamba_page_size_padded=None,
            kv_cache_dtype_skip_layers=[],
        )  # fmt: skip
        model = SimpleNamespace(
            use_mla=latent, dtype=self.model_dtype, architecture="",
            get_num_kv_heads=lambda _: self.heads(heads), get_head_size=lambda: dim,
            get_mamba_chunk_size=lambda: 256,
        )  # fmt: skip
        config = SimpleNamespace(
            cache_config=cache, model_config=model, parallel_config=None,
            compilation_config=SimpleNamespace(static_forward_context=self._mixers()),
        )  # fmt: skip
        states = SimpleNamespace(
            get_mamba_state_shape_from_config=lambda _: shapes,
            get_mamba_state_dtype_from_config=lambda _: dtypes,
        )
        backend = SimpleNamespace(
            get_supported_kernel_block_sizes=lambda: [MultipleOf(16)],
            customize_spec=self.packed,
        )
        saved = ModelRegistry.resolve_model_cls
        ModelRegistry.resolve_model_cls = lambda *_, **__: (states, "")
        platform = type("Aligned", (Platform,), {"_find_non_ssm_backends": lambda *_: [backend]})
        import vllm.config.vllm as vllm_config_module

        entered = vllm_config_module.set_current_vllm_config
        vllm_config_module.set_current_vllm_config = _no_config
        try:
            platform._align_hybrid_block_size(config, backend)
        finally:
            ModelRegistry.resolve_model_cls = saved
            vllm_config_module.set_current_vllm_config = entered
        self.block, self.padded = cache.block_size, cache.mamba_page_size_padded

    def _mixers(self) -> dict[str, Any]:
        """Stands for the delta nets of a model whose kernels export checkpoints (0.33)."""
        if not self.case["flashinfer_delta"]:
            return {}
        from vllm.model_executor.layers.mamba.abstract import MambaBase
        from vllm.v1.attention.backends.gdn_attn import FLASHINFER_GDN_CHECKPOINT_ALIGNMENT

        members = {
            "get_prefill_checkpoint_alignment": lambda _: FLASHINFER_GDN_CHECKPOINT_ALIGNMENT
        }
        mixer = type("Mixer", (MambaBase,), members)
        mixer.__abstractmethods__ = frozenset()
        return {"mixer": mixer()}

    def _attention_layers(self) -> Iterator[list[Any]]:
        c, kind = self.config, self.config["model_type"]
        n = c.get("num_hidden_layers") or c["n_layer"]
        q_heads = c.get("num_attention_heads") or c["n_head"]
        heads = 1 if c.get("multi_query") else c.get("num_key_value_heads", q_heads)
        dim = c.get("head_dim") or c["hidden_size"] // q_heads
        v_dim = c.get("v_head_dim")
        stored = n - c.get("num_kv_shared_layers", 0)
        window = c.get("sliding_window") if c.get("use_sliding_window", True) else None
        if kind == "cohere2" and self.vllm.is_new:
            window += 1
        for i in range(stored):
            if kind == "llama4_text":
                chunk = c["attention_chunk_size"] if (i + 1) % 4 else None
                yield [self.attention(heads, dim, chunk=chunk)]
            elif not self._slides(i, window):
                full_heads = c.get("num_global_key_value_heads") or heads
                yield [self.attention(full_heads, c.get("global_head_dim") or dim, v_dim)]
            elif kind == "mimo_v2_flash":
                yield [
                    self.attention(
                        c["swa_num_key_value_heads"], c["swa_head_dim"], c["swa_v_head_dim"], window
                    )
                ]
            else:
                yield [self.attention(heads, dim, window=window)]
        for _ in range(self.case["eagle_layers"]):
            yield [self.attention(heads, dim)]

    def _slides(self, i: int, window: int | None) -> bool:
        c, kind = self.config, self.config["model_type"]
        if window is None:
            return False
        if "layer_types" in c:
            return bool(c["layer_types"][i] == "sliding_attention")
        if kind == "gemma2":
            return i % 2 == 0
        if kind == "mimo_v2_flash":
            return bool(c["hybrid_layer_pattern"][i])
        if isinstance(c.get("sliding_window_pattern"), int):
            return bool((i + 1) % c["sliding_window_pattern"])
        return True


class _no_config:
    """Stands in for vLLM's context manager: no global configuration is needed here."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __enter__(self) -> None: ...

    def __exit__(self, *_: Any) -> None: ...

"""``specdec bench transformers``: plain decoding beside transformers' ``generate``, same weights, same threads."""

import json
import time
from typing import Annotated, Any

import typer

from specdec_fn.cli import options as o
from specdec_fn.cli.status import wide_console

__all__ = ["transformers"]

PROMPT = "Write a story about a lighthouse keeper who finds a letter in a bottle."


def transformers(
    model: o.ModelName = "smollm2-135m",
    max_tokens: o.MaxTokens = 128,
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="Runs of each, in turns.")] = 5,
    json_: o.Json = False,
) -> int:
    """Milliseconds a token of plain greedy decoding here and in transformers, and their ratio."""
    import torch
    from rich.table import Table

    from specdec_fn.cli.bench.paired import spread
    from specdec_fn.doors import generate
    from specdec_fn.sampling import SamplingParams

    target, tokenizer = o.load_model(model)
    theirs = _peer(target)
    ids = tokenizer.chat([{"role": "user", "content": PROMPT}])
    prompt = torch.tensor([ids])

    def ours_once() -> list[int]:
        return generate(target, ids, tokenizer=tokenizer, sampling=SamplingParams(0.0), max_tokens=max_tokens, ignore_eos=True).tokens

    def theirs_once() -> list[int]:
        made = theirs.generate(
            prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=max_tokens, min_new_tokens=max_tokens, do_sample=False, pad_token_id=0
        )
        return made[0, len(ids) :].tolist()

    times: dict[str, list[float]] = {"ours": [], "transformers": []}
    tokens: dict[str, list[int]] = {}
    for repeat in range(repeats + 1):
        pair = (("ours", ours_once), ("transformers", theirs_once))
        for name, run in pair if repeat % 2 else pair[::-1]:
            start = time.perf_counter()
            tokens[name] = run()
            if repeat:  # the first round warms up
                times[name].append(1e3 * (time.perf_counter() - start) / max_tokens)
    ratios = [theirs_ms / ours_ms for theirs_ms, ours_ms in zip(times["transformers"], times["ours"], strict=True)]
    same = tokens["ours"] == tokens["transformers"]
    if json_:
        print(json.dumps({"threads": torch.get_num_threads(), "ms": times, "ratios": ratios, "same_tokens": same}))
        return 0
    table = Table(title=f"plain greedy decoding, {max_tokens} tokens, float32, {torch.get_num_threads()} threads, {repeats} runs in turns")
    for column in ("", "milliseconds a token"):
        table.add_column(column)
    table.add_row("specdec_fn", spread(times["ours"]))
    table.add_row("transformers", spread(times["transformers"]))
    table.add_row("times as fast", spread(ratios))
    table.add_row("same tokens", str(same))
    wide_console().print(table)
    return 0


def _peer(target: Any) -> Any:
    """transformers' own Llama with the same weights."""
    try:
        from transformers import LlamaConfig, LlamaForCausalLM
    except ImportError:
        raise ValueError("transformers is not installed; pip install transformers to compare with it") from None
    config, params = target.config, target.params
    if config.architecture != "llama" or config.rope.scaling != "none":
        raise ValueError(f"the model is {config.architecture!r} with rope scaling {config.rope.scaling!r}; expected a plain llama to compare")
    theirs = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=config.vocab_size,
            hidden_size=config.width,
            intermediate_size=config.ffn,
            num_hidden_layers=config.layers,
            num_attention_heads=config.heads,
            num_key_value_heads=config.kv_heads,
            head_dim=config.head_dim,
            max_position_embeddings=config.context,
            rms_norm_eps=config.norm_eps,
            rope_parameters={"rope_type": "default", "rope_theta": config.rope.base},
            tie_word_embeddings=config.tied,
        )
    ).eval()
    weights = {"model.embed_tokens.weight": params.embedding, "model.norm.weight": params.norm}
    if params.head is not None:
        weights["lm_head.weight"] = params.head
    queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
    for index, layer in enumerate(params.layers):
        place = f"model.layers.{index}."
        query, key, value = layer.qkv.split([queries, keys, keys])
        gate, up = layer.gate_up.split([config.ffn, config.ffn])
        weights |= {
            f"{place}input_layernorm.weight": layer.attention_norm,
            f"{place}self_attn.q_proj.weight": query,
            f"{place}self_attn.k_proj.weight": key,
            f"{place}self_attn.v_proj.weight": value,
            f"{place}self_attn.o_proj.weight": layer.output,
            f"{place}post_attention_layernorm.weight": layer.ffn_norm,
            f"{place}mlp.gate_proj.weight": gate,
            f"{place}mlp.up_proj.weight": up,
            f"{place}mlp.down_proj.weight": layer.down,
        }
    theirs.load_state_dict(weights, strict=False)
    return theirs

"""Random models of two or three layers, one for each architecture, and a batch of rows of many lengths."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
import transformers
from torch import Tensor

_SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "intermediate_size": 48,
    "vocab_size": 60,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_GQA = {**_SIZES, "num_key_value_heads": 2, "attention_dropout": 0.1}
_CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "albert": ("Albert", {**_SIZES, "embedding_size": 16, "hidden_dropout_prob": 0.1}),
    "bart": ("Bart", {"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4}),
    "bert": ("Bert", _SIZES),
    "deberta": ("DebertaV2", {**_SIZES, "relative_attention": True, "pos_att_type": ["c2p", "p2c"]}),
    "distilbert": ("DistilBert", {"dim": 32, "n_heads": 4, "n_layers": 2, "hidden_dim": 48, "vocab_size": 60}),
    "electra": ("Electra", {**_SIZES, "embedding_size": 16}),
    "gemma2": ("Gemma2", {**_GQA, "head_dim": 8}),
    "gpt2": ("GPT2", {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "vocab_size": 60, "pad_token_id": 0}),
    "llama": ("Llama", _GQA),
    "mistral": ("Mistral", {**_GQA, "sliding_window": 5}),
    "modernbert": (
        "ModernBert",
        {
            **_SIZES,
            "local_attention": 6,
            "cls_token_id": 1,
            "sep_token_id": 2,
            "attention_dropout": 0.1,
            "embedding_dropout": 0.1,
            "mlp_dropout": 0.1,
            "classifier_dropout": 0.1,
        },
    ),
    "mpnet": ("MPNet", {**_SIZES, "pad_token_id": 1}),
    "opt": ("OPT", {**_SIZES, "ffn_dim": 48, "word_embed_proj_dim": 32}),
    "qwen2": ("Qwen2", _GQA),
    "roberta": ("Roberta", {**_SIZES, "pad_token_id": 1, "bos_token_id": 0}),
    "t5": ("T5", {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "vocab_size": 60}),
    "xlm_roberta": ("XLMRoberta", {**_SIZES, "pad_token_id": 1, "bos_token_id": 0}),
}
LENGTHS = [3, 17, 9, 1, 5, 12, 17, 4, 8, 2, 15, 11, 6, 7, 13, 9]


def small_model(architecture: str, head: str = "ForSequenceClassification", **settings: Any) -> Any:
    """Returns a model in train mode, the same one at each call."""
    prefix, sizes = _CONFIGS[architecture]
    sizes = {**sizes, **settings}
    if architecture == "t5":
        sizes |= {"pad_token_id": 0, "decoder_start_token_id": 0, "eos_token_id": 2}
    if architecture == "bart":
        sizes |= {"vocab_size": 60, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "decoder_attention_heads": 4}
    torch.manual_seed(1)
    config = getattr(transformers, f"{prefix}Config")(**sizes)
    with torch.random.fork_rng():
        return getattr(transformers, f"{prefix}{head}")(config).train()


def batch(rows: Iterable[int], padding_id: int | None, left: bool = False) -> dict[str, Tensor]:
    """Returns some of the rows, padded to the longest of them."""
    rows = list(rows)
    generator = torch.Generator().manual_seed(0)
    texts = [torch.randint(3, 60, (length,), generator=generator) for length in LENGTHS]
    for text in texts:
        text[-1] = 2
    width = max(LENGTHS[row] for row in rows)
    ids = torch.full((len(rows), width), padding_id or 0)
    mask = torch.zeros(len(rows), width, dtype=torch.int64)
    for place, row in enumerate(rows):
        where = slice(width - LENGTHS[row], width) if left else slice(0, LENGTHS[row])
        ids[place, where], mask[place, where] = texts[row], 1
    return {"input_ids": ids, "attention_mask": mask}


def gradients(model: Any, parts: Iterable[Iterable[int]], before: Callable[[list[int]], object]) -> Tensor:
    """Sums the gradients of parts of the rows: ``before`` is told the rows, then the part is run."""
    model.zero_grad()
    for part in parts:
        rows = list(part)
        before(rows)
        logits = model(**batch(rows, model.config.pad_token_id)).logits
        torch.nn.functional.cross_entropy(logits, torch.tensor(rows) % 2, reduction="sum").backward()
    return torch.cat([weight.grad.flatten() for weight in model.parameters() if weight.grad is not None])


def relative(a: Tensor, b: Tensor) -> float:
    """Returns how far apart two vectors are, relative to the first."""
    return float((a - b).norm() / a.norm())


WHOLE = [range(16)]
FOURS = [range(start, start + 4) for start in range(0, 16, 4)]
ONES = [[row] for row in range(16)]

"""What tests share: a tiny model with its tokenizer, a table of texts, and processes that end for certain."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pytest
import torch

WORDS = [f"w{index}" for index in range(40)] + ["good", "bad", "fine", "the", "film"]


@pytest.fixture(scope="session")
def tiny_bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a random BERT of two layers, dropout 0.1, and a tokenizer of whole words."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast
    from transformers.utils import logging

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    vocabulary = {word: index for index, word in enumerate(special + WORDS)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", vocabulary["[CLS]"]), ("[SEP]", vocabulary["[SEP]"])],
    )
    names = {
        name: f"[{name[:-6].upper()}]" for name in ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
    }
    folder = tmp_path_factory.mktemp("tiny_bert")
    inputs = ["input_ids", "token_type_ids", "attention_mask"]
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=64, model_input_names=inputs, **names)
    fast.save_pretrained(folder)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=48,
        max_position_embeddings=64,
    )
    logging.disable_progress_bar()
    BertModel(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def films() -> dict[str, list[str]]:
    """90 short texts, a quarter of them bad, of 2 to 20 words."""
    rng = np.random.default_rng(0)
    labels = ["bad" if index % 4 == 0 else "good" for index in range(90)]
    texts = [
        " ".join([*rng.choice(WORDS[:40], rng.integers(1, 19)), label if rng.random() < 0.9 else "fine"])
        for label in labels
    ]
    return {"text": texts, "label": labels}


@pytest.fixture
def run_python(tmp_path: Path) -> Callable[..., str]:
    """Runs a script in a process of its own that is killed when it takes too long; returns what it printed."""

    def run(script: str, *arguments: object, timeout: float = 120, **environment: str) -> str:
        path = tmp_path / "script.py"
        path.write_text(script)
        done = subprocess.run(
            [sys.executable, str(path), *map(str, arguments)],
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), **environment},
            capture_output=True,
            text=True,
            timeout=timeout,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run

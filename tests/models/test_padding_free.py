import copy
import io
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification

from lit_trainer.models import attention, keyed_dropout, padding_free
from lit_trainer.models.token_context import TokenContext
from tests.models.small_models import FOURS, LENGTHS, ONES, WHOLE, batch, gradients, relative, small_model

ENCODERS = ["bert", "distilbert", "electra", "modernbert", "roberta", "xlm_roberta"]
DECODERS = ["gpt2", "llama", "mistral", "opt", "qwen2"]
HEADS = [
    *[(name, head) for name in ENCODERS for head in ("ForSequenceClassification", "ForTokenClassification")],
    *[(name, "ForMaskedLM") for name in ENCODERS],
    *[(name, "ForSequenceClassification") for name in DECODERS],
    *[(name, "LMHeadModel" if name == "gpt2" else "ForCausalLM") for name in DECODERS],
    *[("llama", "ForTokenClassification"), ("gpt2", "ForTokenClassification"), ("bert", "Model")],
]


def outputs(model: nn.Module, rows: dict[str, Tensor]) -> Tensor:
    """Returns what counts of the outputs: those of the rows, or of their real tokens."""
    out = model(**rows)[0]
    return out[rows["attention_mask"].bool()] if out.dim() == 3 else out


def run(model: nn.Module, rows: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Returns the outputs and the gradients of a sum that weighs each of them differently."""
    model.zero_grad()
    out = outputs(model, rows)
    (out * torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view(out.shape)).sum().backward()
    return out.detach(), torch.cat([weight.grad.flatten() for weight in model.parameters() if weight.grad is not None])


def assert_same(padded: tuple[Tensor, Tensor], free: tuple[Tensor, Tensor], tolerance: float) -> None:
    assert relative(padded[0], free[0]) < tolerance
    assert relative(padded[1], free[1]) < tolerance


@pytest.mark.exact
@pytest.mark.parametrize(("architecture", "head"), HEADS)
def test_outputs_and_gradients_are_those_of_the_padded_run(architecture: str, head: str) -> None:
    model = small_model(architecture, head).double()
    model.eval()  # without dropout, with gradients
    rows = batch(range(16), model.config.pad_token_id)
    padded = run(model, rows)
    padding_free.install(model)
    assert_same(padded, run(model, rows), 1e-12)


@pytest.mark.exact
@pytest.mark.parametrize("architecture", [name for name in (*ENCODERS, *DECODERS) if name != "opt"])
def test_keyed_dropout_is_the_same_with_and_without_padding_and_in_any_split(architecture: str) -> None:
    model = small_model(architecture).double()
    context = keyed_dropout.install(model, seed=7)

    def of(parts: list) -> Tensor:
        return gradients(model, parts, lambda rows: context.set_rows(0, torch.tensor(rows)))

    padded = of(WHOLE)
    padding_free.install(model)
    assert relative(padded, of(WHOLE)) < 1e-12
    assert relative(padded, of(FOURS)) < 1e-12
    assert relative(padded, of(ONES)) < 1e-12
    model.activation_checkpointing_enable()
    assert relative(padded, of(WHOLE)) < 1e-12
    assert relative(padded, of(FOURS)) < 1e-12


@pytest.mark.parametrize("order", ["keyed first", "free first"])
def test_the_order_of_installing_does_not_matter(order: str) -> None:
    model = small_model("bert").double()
    if order == "free first":
        padding_free.install(model)
    context = keyed_dropout.install(model, seed=7)
    if order == "keyed first":
        padding_free.install(model)
    found = gradients(model, FOURS, lambda rows: context.set_rows(0, torch.tensor(rows)))
    other = small_model("bert").double()
    context = keyed_dropout.install(other, seed=7)
    assert relative(gradients(other, WHOLE, lambda rows: context.set_rows(0, torch.tensor(rows))), found) < 1e-12


ROWS = {
    "one row": [9],
    "equal lengths": [1, 6],
    "one token": [3],
    "a row of one token": [3, 4, 5],
    "rows of one token": [3, 3, 3],
    "as many tokens as the longest row": [0, 9],
}


@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS)
@pytest.mark.parametrize("architecture", ["bert", "llama"])
def test_small_batches(architecture: str, rows: list[int]) -> None:
    model = small_model(architecture).double()
    context = keyed_dropout.install(model, seed=7)
    inputs = batch(rows, 0)
    found = []
    for is_on in (False, True):
        if is_on:
            padding_free.install(model)
        context.set_rows(0, torch.arange(len(rows)))
        found.append(run(model, inputs))
    assert_same(*found, 1e-12)


def test_a_row_without_tokens_is_left_alone() -> None:
    model = small_model("bert", "ForTokenClassification").double().eval()
    rows = batch(range(4), 0)
    rows["attention_mask"][2] = 0
    padded = run(model, rows)
    padding_free.install(model)
    assert_same(padded, run(model, rows), 1e-12)
    rows["attention_mask"][:] = 0
    assert model(**rows).logits.isfinite().all()


@pytest.mark.parametrize("architecture", ["bert", "llama", "gpt2", "modernbert"])
def test_padding_on_the_left_is_served(architecture: str) -> None:
    model = small_model(architecture, "ForTokenClassification").double().eval()
    rows = batch(range(8), 0, left=True)
    padded = run(model, rows)
    padding_free.install(model)
    assert_same(padded, run(model, rows), 1e-12)


@pytest.mark.parametrize("architecture", ["bert", "modernbert", "llama"])
def test_bfloat16_is_as_close_as_the_padded_run(architecture: str) -> None:
    model = small_model(architecture).eval()
    rows = batch(range(16), 0)
    exact = run(model, rows)
    with torch.autocast("cpu", torch.bfloat16):
        padded = run(model, rows)
        padding_free.install(model)
        free = run(model, rows)
    for reference, wanted, got in zip(exact, padded, free, strict=True):
        assert relative(reference, got) < 2 * relative(reference, wanted) + 1e-3


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_evaluation_without_gradients(precision: torch.dtype) -> None:
    model = small_model("bert").eval()
    rows = batch(range(16), 0)
    with torch.inference_mode(), torch.autocast("cpu", precision, enabled=precision == torch.bfloat16):
        padded = model(**rows).logits
        padding_free.install(model)
        free = model(**rows).logits
    assert relative(padded, free) < (1e-5 if precision == torch.float32 else 2e-2)


def test_training_after_evaluation_in_inference_mode() -> None:
    model = small_model("bert")
    context = keyed_dropout.install(model, seed=7)
    padding_free.install(model)
    rows = batch(range(4), 0)
    with torch.inference_mode():
        context.set_rows(0, torch.arange(4))
        model(**rows)
    context.set_rows(0, torch.arange(4))
    assert run(model, rows)[1].isfinite().all()


def test_ordinary_dropout_follows_the_seed() -> None:
    model = small_model("bert", hidden_dropout_prob=0.0)
    padding_free.install(model)
    rows = batch(range(16), 0)
    torch.manual_seed(0)
    first = model(**rows).logits
    assert not torch.equal(first, model(**rows).logits)
    torch.manual_seed(0)
    assert torch.equal(first, model(**rows).logits)


@pytest.mark.parametrize("is_keyed", [False, True])
@torch.no_grad()
def test_dropout_has_the_mean_and_spread_of_the_padded_run_s(is_keyed: bool) -> None:
    settings = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.3, "initializer_range": 0.2}
    reference, model = small_model("bert", **settings), small_model("bert", **settings)
    padding_free.install(model)
    if is_keyed:
        keyed_dropout.install(model, seed=7).set_rows(0, torch.arange(1000))
    rows = batch([2] * 1000, 0)
    padded, free = reference(**rows).logits, model(**rows).logits
    assert ((padded.mean(0) - free.mean(0)).abs() < 5 * (padded.var(0) + free.var(0)).sqrt() / 1000**0.5).all()
    assert ((padded.std(0) / free.std(0) - 1).abs() < 0.15).all()


def test_ordinary_dropout_is_recomputed_alike() -> None:
    model = small_model("bert").double()
    padding_free.install(model)
    rows = batch(range(8), 0)
    torch.manual_seed(0)
    kept = run(model, rows)
    model.activation_checkpointing_enable()
    torch.manual_seed(0)
    assert_same(kept, run(model, rows), 1e-12)


def test_blocks_see_real_tokens_only() -> None:
    model = small_model("bert")
    padding_free.install(model)
    seen: list[tuple[int, ...]] = []
    for layer in model.bert.encoder.layer:
        layer.output.register_forward_hook(lambda module, args, out: seen.append(tuple(out.shape)))
    model(**batch(range(16), 0))
    assert seen == [(1, sum(LENGTHS), 32)] * 2


def test_lengths_may_be_given() -> None:
    model = small_model("bert").eval()
    rows = batch(range(4), 0)
    plain = model(**rows).logits
    padding_free.install(model)
    for lengths in (LENGTHS[:4], torch.tensor(LENGTHS[:4])):
        torch.testing.assert_close(plain, model(**rows, lengths=lengths).logits)
    with pytest.raises(ValueError, match=r"lengths \[3, 17, 9, 2\] do not fit an attention_mask with \[3, 17, 9, 1\]"):
        model(**rows, lengths=[3, 17, 9, 2])
    torch.testing.assert_close(plain, model(**rows).logits)


def test_without_a_mask_all_tokens_are_real() -> None:
    model = small_model("bert").eval()
    ids = batch([1, 6], 0)["input_ids"]
    plain = model(input_ids=ids).logits
    padding_free.install(model)
    torch.testing.assert_close(plain, model(input_ids=ids).logits)
    torch.testing.assert_close(plain, model(inputs_embeds=model.bert.embeddings.word_embeddings(ids)).logits)


def test_positions_may_be_given() -> None:
    model = small_model("llama", "ForCausalLM").double().eval()
    rows = batch(range(4), 0)
    rows["position_ids"] = torch.arange(17).expand(4, -1) + torch.arange(4)[:, None]
    padded = run(model, rows)
    padding_free.install(model)
    assert_same(padded, run(model, rows), 1e-12)


def test_what_needs_padding_is_run_padded() -> None:
    model = small_model("bert").eval()
    rows = batch(range(4), 0)
    plain = model(**rows, output_hidden_states=True)
    padding_free.install(model)
    found = model(**rows, output_hidden_states=True)
    torch.testing.assert_close(plain.hidden_states, found.hidden_states)
    broad = {**rows, "attention_mask": rows["attention_mask"][:, None, None].expand(4, 1, 17, 17).bool()}
    torch.testing.assert_close(plain.logits, model(**broad).logits)


def test_generation_is_what_it_was() -> None:
    model = small_model("llama", "ForCausalLM").eval()
    rows = batch(range(4), 0, left=True)
    plain = model.generate(**rows, max_new_tokens=5, do_sample=False)
    padding_free.install(model)
    assert torch.equal(plain, model.generate(**rows, max_new_tokens=5, do_sample=False))


def test_a_failed_call_leaves_nothing_behind() -> None:
    model = small_model("bert").eval()
    rows = batch(range(4), 0)
    plain = model(**rows).logits
    free = padding_free.install(model)
    handle = model.bert.encoder.layer[1].register_forward_pre_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        model(**rows)
    handle.remove()
    assert TokenContext.of(model).now.layout is None
    free.is_on = False
    torch.testing.assert_close(plain, model(**rows).logits, rtol=0, atol=0)
    free.is_on = True
    torch.testing.assert_close(plain, model(**rows).logits)


def test_remove_takes_everything_away() -> None:
    model = small_model("bert").eval()
    rows = batch(range(4), 0)
    plain = model(**rows).logits
    padding_free.install(model).remove()
    assert model.config._attn_implementation == "sdpa"
    torch.testing.assert_close(plain, model(**rows).logits, rtol=0, atol=0)


def test_installing_twice_is_installing_once() -> None:
    model = small_model("bert").eval()
    rows = batch(range(4), 0)
    plain = model(**rows).logits
    free = padding_free.install(model)
    assert padding_free.serves(model) is None
    assert padding_free.install(model) is free
    torch.testing.assert_close(plain, model(**rows).logits)


def test_the_base_model_takes_lengths_too() -> None:
    model = small_model("llama", "Model").eval()
    rows = batch(range(4), 0)
    plain = outputs(model, rows)
    padding_free.install(model)
    real = model(**rows, lengths=LENGTHS[:4])[0][rows["attention_mask"].bool()]
    torch.testing.assert_close(plain, real)


def test_two_models_run_side_by_side() -> None:
    teacher, student = small_model("bert"), small_model("distilbert").double()
    padding_free.install(teacher)
    padding_free.install(student)
    keyed_dropout.install(teacher, seed=1).set_rows(0, torch.arange(16))
    context = keyed_dropout.install(student, seed=7)

    def both(rows: list[int]) -> None:
        context.set_rows(0, torch.tensor(rows))
        with torch.no_grad():
            teacher(**batch(rows[:3], 0))

    found = gradients(student, FOURS, both)
    assert relative(found, gradients(student, WHOLE, lambda rows: context.set_rows(0, torch.tensor(rows)))) < 1e-12


def test_the_saved_model_is_the_plain_one(tmp_path: Path) -> None:
    model = small_model("modernbert").eval()
    keys, rows = list(model.state_dict()), batch(range(4), 0)
    padding_free.install(model)
    assert list(model.state_dict()) == keys
    model.save_pretrained(tmp_path)
    assert attention.NAME not in (tmp_path / "config.json").read_text()
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    assert loaded.config._attn_implementation == "sdpa"
    torch.testing.assert_close(model(**rows).logits, loaded(**rows).logits)


@pytest.mark.parametrize("way", ["deepcopy", "pickle"])
def test_a_copy_runs_by_itself(way: str) -> None:
    model = small_model("bert").eval()
    padding_free.install(model)
    rows = batch(range(4), 0)
    model(**rows)
    if way == "deepcopy":
        twin: Any = copy.deepcopy(model)
    else:
        stream = io.BytesIO()
        torch.save(model, stream)
        stream.seek(0)
        twin = torch.load(stream, weights_only=False)
    seen: list[int] = []
    twin.bert.encoder.layer[0].output.register_forward_hook(lambda module, args, out: seen.append(out.shape[1]))
    torch.testing.assert_close(model(**rows).logits, twin(**rows).logits)
    assert seen == [sum(LENGTHS[:4])]


@pytest.mark.parametrize(
    ("architecture", "settings", "reason"),
    [
        ("albert", {}, "AlbertForSequenceClassification has 0 lists of 2 blocks, not one"),
        ("bart", {}, "BartForSequenceClassification has an encoder and a decoder, which pad their rows differently"),
        ("t5", {}, "T5ForSequenceClassification has an encoder and a decoder, which pad their rows differently"),
        ("deberta", {}, "has an attention of its own instead of Transformers' AttentionInterface"),
        ("mpnet", {}, "has an attention of its own instead of Transformers' AttentionInterface"),
        ("gemma2", {}, "Gemma2ForSequenceClassification is set to eager attention, which has no form without padding"),
        ("opt", {"layerdrop": 0.1}, r"OPTForSequenceClassification leaves out blocks at random (layerdrop 0.1)"),
        *[(name, {}, None) for name in (*ENCODERS, *DECODERS)],
    ],
)
def test_serves_says_why_not(architecture: str, settings: dict, reason: str | None) -> None:
    model = small_model(architecture, **settings)
    before = model.config._attn_implementation
    state, modes = torch.get_rng_state(), [module.training for module in model.modules()]
    found = padding_free.serves(model)
    assert (found is None) if reason is None else (found is not None and reason in found)
    assert model.config._attn_implementation == before
    assert [module.training for module in model.modules()] == modes
    assert torch.equal(state, torch.get_rng_state())
    if reason:
        with pytest.raises(ValueError) as error:
            padding_free.install(model)
        assert str(error.value) == found


def test_what_mixes_tokens_of_different_rows_is_found_by_a_trial() -> None:
    class Mixing(nn.Module):
        def forward(self, states: Tensor) -> Tensor:
            return states + states.roll(1, 1)

    model = small_model("bert")
    model.bert.encoder.layer[1].intermediate = nn.Sequential(Mixing(), model.bert.encoder.layer[1].intermediate)
    assert "gives other results without padding: they differ by" in str(padding_free.serves(model))
    model.bert.encoder.layer[1].intermediate[0].forward = lambda states: states[:2]
    model.bert.encoder.layer[1].output.forward = lambda hidden, states: (hidden + states).view(2, 11, -1)
    assert "BertForSequenceClassification fails in a trial" in str(padding_free.serves(model))


def test_a_plain_module_is_declined() -> None:
    assert padding_free.serves(nn.Linear(2, 2)) == "Linear is no model of Transformers"


def test_a_model_without_weights_is_judged_by_its_kind() -> None:
    with torch.device("meta"):
        model = small_model("bert")
    assert padding_free.serves(model) is None

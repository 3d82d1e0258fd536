import copy
import io
import logging
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification

from lit_trainer.models import attention, keyed_dropout
from lit_trainer.models.keyed_dropout import KeyedDropout
from tests.models.small_models import FOURS, ONES, WHOLE, batch, gradients, relative, small_model

KEYED = ["albert", "bert", "distilbert", "gpt2", "llama", "modernbert", "mpnet", "roberta", "t5"]


@pytest.mark.exact
@pytest.mark.parametrize("architecture", KEYED)
def test_any_split_of_a_batch_drops_the_same(architecture: str) -> None:
    model = small_model(architecture).double()
    context = keyed_dropout.install(model, seed=7)

    def of(parts: list, epoch: int = 0, pass_index: int = 0) -> Tensor:
        return gradients(model, parts, lambda rows: context.set_rows(epoch, torch.tensor(rows), pass_index))

    whole = of(WHOLE)
    assert relative(whole, of(FOURS)) < 1e-12
    assert relative(whole, of(ONES)) < 1e-12
    assert relative(whole, of([[5, 2, 0], [1, 3, 4, 6, 15, 14, 13], [7, 8, 9, 10, 11, 12]])) < 1e-12
    assert relative(whole, of(WHOLE, epoch=1)) > 0.1
    assert relative(whole, of(WHOLE, pass_index=1)) > 0.1
    context.seed = 8
    assert relative(whole, of(WHOLE)) > 0.1
    if model.supports_gradient_checkpointing:
        context.seed = 7
        model.activation_checkpointing_enable()
        assert relative(whole, of(WHOLE)) < 1e-12
        assert relative(whole, of(FOURS)) < 1e-12


def test_float32_and_bfloat16_drop_what_float64_drops() -> None:
    model = small_model("bert")
    context = keyed_dropout.install(model, seed=7)
    single = gradients(model, FOURS, lambda rows: context.set_rows(0, torch.tensor(rows)))
    with torch.autocast("cpu", torch.bfloat16):
        half = gradients(model, FOURS, lambda rows: context.set_rows(0, torch.tensor(rows)))
    double = gradients(model.double(), WHOLE, lambda rows: context.set_rows(0, torch.tensor(rows)))
    assert relative(double, single) < 1e-5
    assert relative(double, half) < 0.05


def test_a_row_drawn_twice_differs() -> None:
    model = small_model("bert")
    context = keyed_dropout.install(model, seed=7)
    context.set_rows(0, torch.tensor([3, 9, 3]))
    logits = model(**batch([6, 6, 6], 0)).logits
    assert torch.equal(logits[0], logits[2])
    assert not torch.equal(logits[0], logits[1])


def test_layers_that_are_used_twice_differ_in_each_use() -> None:
    model = small_model("albert", num_hidden_layers=2)
    context = keyed_dropout.install(model, seed=7)
    context.set_rows(0, torch.arange(4))
    first = model(**batch(range(4), 0)).logits
    assert not torch.equal(first, model(**batch(range(4), 0)).logits)
    context.set_rows(0, torch.arange(4))
    assert torch.equal(first, model(**batch(range(4), 0)).logits)


def test_a_recomputed_layer_drops_the_same_when_other_rows_were_set_in_between() -> None:
    model = small_model("bert").double()
    context = keyed_dropout.install(model, seed=7)
    found = []
    for checkpointing in (False, True):
        if checkpointing:
            model.activation_checkpointing_enable()
        model.zero_grad()
        losses = []
        for rows in FOURS:
            context.set_rows(0, torch.tensor(rows))
            losses.append(model(**batch(rows, 0)).logits.square().sum())
        context.set_rows(1, torch.arange(3))
        torch.stack(losses).sum().backward()
        found.append(torch.cat([weight.grad.flatten() for weight in model.parameters()]))
    assert relative(*found) < 1e-12


def test_padding_on_the_left_changes_no_hidden_dropout() -> None:
    model = small_model("llama", attention_dropout=0.0).double()
    model.model.embed_tokens = nn.Sequential(model.model.embed_tokens, nn.Dropout(0.5))
    context = keyed_dropout.install(model, seed=7)
    context.set_rows(0, torch.tensor([3]))
    alone = model(**batch([3], 0)).logits
    context.set_rows(0, torch.tensor([1, 3]))
    torch.testing.assert_close(alone[0], model(**batch([1, 3], 0, left=True)).logits[1])


@pytest.mark.parametrize("architecture", ["bert", "llama", "t5"])
def test_evaluation_is_untouched(architecture: str) -> None:
    model = small_model(architecture).eval()
    rows = batch(range(8), 0)
    before = model(**rows).logits
    keyed_dropout.install(model, seed=7)
    torch.testing.assert_close(before, model(**rows).logits, rtol=0, atol=0)


def test_the_random_stream_is_left_alone() -> None:
    model = small_model("bert")
    context = keyed_dropout.install(model, seed=7)
    state = torch.get_rng_state()
    context.set_rows(0, torch.arange(8))
    model(**batch(range(8), 0)).logits.sum().backward()
    assert torch.equal(state, torch.get_rng_state())


def test_multiple_choice_drops_by_draw_and_choice() -> None:
    model = small_model("bert", "ForMultipleChoice").double()
    context = keyed_dropout.install(model, seed=7)
    rows = {name: value.view(4, 4, -1) for name, value in batch(range(16), 0).items()}
    context.set_rows(0, torch.arange(4))
    whole = model(**rows).logits
    parts = []
    for row in range(4):
        context.set_rows(0, torch.tensor([row]))
        parts.append(model(**{name: value[row : row + 1] for name, value in rows.items()}).logits)
    torch.testing.assert_close(whole, torch.cat(parts))


@pytest.mark.parametrize("draws", [None, 5])
def test_without_known_rows_it_is_ordinary_dropout_and_says_so_once(
    draws: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    model = small_model("bert")
    context = keyed_dropout.install(model, seed=7)
    for _ in range(2):
        if draws:
            context.set_rows(0, torch.arange(draws))
        torch.manual_seed(0)
        first = model(**batch(range(4), 0)).logits
        assert not torch.equal(first, model(**batch(range(4), 0)).logits)
    assert len(caplog.records) == 1
    assert "ordinary dropout for lines of shape (4, 17), as " in caplog.text
    assert ("5 rows were set" if draws else "no rows were set") in caplog.text


@pytest.mark.parametrize(
    ("architecture", "settings", "named"),
    [
        ("bert", {}, None),
        ("mpnet", {}, None),
        ("llama", {}, None),
        ("bart", {}, "BartDecoder, BartDecoderLayer, BartEncoder, BartEncoderLayer"),
        ("bert", {"attn_implementation": "eager"}, r"eager attention (attention_probs_dropout_prob)"),
        ("llama", {"attn_implementation": "eager", "attention_dropout": 0.0}, None),
    ],
)
def test_install_names_what_cannot_be_keyed(
    architecture: str, settings: dict, named: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    keyed_dropout.install(small_model(architecture, **settings), seed=7)
    assert (f"in {named}" in caplog.text) if named else not caplog.records


def test_other_kinds_of_dropout_stay_and_are_named(caplog: pytest.LogCaptureFixture) -> None:
    class Mine(nn.Dropout):
        pass

    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.1), Mine(0.1), nn.Dropout1d(0.1))
    keyed_dropout.install(model, seed=7)
    assert [type(layer) for layer in model] == [nn.Linear, KeyedDropout, Mine, nn.Dropout1d]
    assert "Dropout1d, Mine" in caplog.text


def test_the_rate_may_change_during_training() -> None:
    model = nn.Sequential(nn.Dropout(0.1))
    context = keyed_dropout.install(model, seed=7)
    x = torch.ones(100, 50)
    for p in (0.0, 0.4, 1.0):
        model[0].p = p
        context.set_rows(0, torch.arange(100))
        assert abs((model(x) == 0).float().mean() - p) < 0.05


def test_installing_twice_changes_the_seed_only() -> None:
    model = small_model("bert")
    context = keyed_dropout.install(model, seed=7)
    modules = list(model.modules())
    assert keyed_dropout.install(model, seed=8) is context
    assert list(model.modules()) == modules
    assert context.seed == 8


def test_set_rows_without_install_is_refused() -> None:
    from lit_trainer.models.token_context import TokenContext

    with pytest.raises(ValueError, match="install keyed dropout before telling it the rows"):
        TokenContext.of(small_model("bert")).set_rows(0, torch.arange(3))


def test_the_saved_model_is_the_plain_one(tmp_path: Path) -> None:
    model = small_model("bert")
    keys = list(model.state_dict())
    keyed_dropout.install(model, seed=7)
    assert model.config._attn_implementation == attention.NAME
    assert list(model.state_dict()) == keys
    model.save_pretrained(tmp_path)
    assert "lit_trainer" not in (tmp_path / "config.json").read_text()
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    assert loaded.config._attn_implementation == "sdpa"
    rows = batch(range(4), 0)
    torch.testing.assert_close(model.eval()(**rows).logits, loaded(**rows).logits)


@pytest.mark.parametrize("way", ["deepcopy", "pickle"])
def test_a_copy_has_rows_of_its_own(way: str) -> None:
    model = small_model("bert")
    context = keyed_dropout.install(model, seed=7)
    context.set_rows(0, torch.arange(4))
    if way == "deepcopy":
        twin = copy.deepcopy(model)
    else:
        stream = io.BytesIO()
        torch.save(model, stream)
        stream.seek(0)
        twin = torch.load(stream, weights_only=False)
    other = keyed_dropout.install(twin, seed=7)
    assert other is not context
    other.set_rows(1, torch.arange(4))
    context.set_rows(0, torch.arange(4))
    rows = batch(range(4), 0)
    first = model(**rows).logits
    assert not torch.equal(first, twin(**rows).logits)
    other.set_rows(0, torch.arange(4))
    torch.testing.assert_close(first, twin(**rows).logits)


def test_the_masks_of_a_layer_have_the_rate_they_should() -> None:
    model = small_model("bert", hidden_dropout_prob=0.3, attention_probs_dropout_prob=0.0)
    context = keyed_dropout.install(model, seed=7)
    seen: list[Tensor] = []
    for module in model.modules():
        if isinstance(module, KeyedDropout) and module.p:
            module.register_forward_hook(lambda module, args, out: seen.append((out == 0).float().mean()))
    context.set_rows(0, torch.arange(16))
    model(**batch(range(16), 0))
    assert len(seen) == 6
    assert all(abs(share - 0.3) < 0.1 for share in seen)


def test_padded_attention_is_torch_s_with_the_same_mask() -> None:
    from lit_trainer.models.fused_kernels import Mask
    from lit_trainer.models.line_dropout import column_words

    module = nn.Module()
    holder = nn.ModuleDict({"attention": module})
    context = keyed_dropout.install(holder, seed=7)
    module.token_site = context.site("attention")
    query, key, value = (torch.randn(3, 4, 9, 8, dtype=torch.float64) for _ in range(3))
    is_open = torch.rand(3, 1, 9, 9) < 0.8
    context.set_rows(0, torch.arange(3))
    words = module.token_site.words((3, 9), query.device)
    context.set_rows(0, torch.arange(3))
    out, _ = attention.attention(module, query, key, value, is_open, dropout=0.2, scaling=0.4, is_causal=False)
    chosen = Mask(words, column_words(4, 9, query.device), 0.2)
    scores = (query @ key.transpose(2, 3) * 0.4).masked_fill(~is_open, float("-inf"))
    expected = scores.softmax(-1) * chosen.kept(scores) * chosen.scale @ value
    torch.testing.assert_close(out, expected.transpose(1, 2))
    for mask in (is_open.double().log(), is_open.expand(3, 4, 9, 9)):  # which take the other way
        context.set_rows(0, torch.arange(3))
        out, _ = attention.attention(module, query, key, value, mask, dropout=0.2, scaling=0.4, is_causal=False)
        torch.testing.assert_close(out, expected.transpose(1, 2))


@pytest.mark.parametrize("name", ["softcap", "s_aux"])
def test_what_keyed_attention_does_not_know_is_refused(name: str) -> None:
    module = nn.Module()
    context = keyed_dropout.install(nn.ModuleDict({"attention": module}), seed=7)
    module.token_site = context.site("attention")
    context.set_rows(0, torch.arange(3))
    query = torch.randn(3, 4, 9, 8)
    with pytest.raises(ValueError, match=f"knows no {name}"):
        attention.attention(module, query, query, query, None, dropout=0.2, **{name: torch.ones(4)})


def test_models_of_functions_only_are_left_as_they_are(caplog: pytest.LogCaptureFixture) -> None:
    class Functional(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return F.dropout(x, 0.1, self.training)

    with caplog.at_level(logging.WARNING):
        keyed_dropout.install(nn.Sequential(Functional()), seed=7)
    assert "in Functional" in caplog.text

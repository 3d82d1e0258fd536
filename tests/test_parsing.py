"""The parser: each mistake in files and flags comes out as one line that names the place and what is allowed."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest
from lightning.fabric.utilities.exceptions import MisconfigurationException

from lit_trainer.mistakes import did_you_mean, find_mistake, find_place, with_allowed
from lit_trainer.parsing import SettingsError, SettingsParser, config_files


class Engine:
    """A base class.

    Args:
        power: Its power.
    """

    def __init__(self, power: int = 3) -> None:
        if power < 0:
            raise ValueError(f"engine.power is {power}")
        self.power = power


class Diesel(Engine):
    """One kind of it."""

    def __init__(self, power: int = 3, fuel: str | None = None) -> None:
        super().__init__(power)
        self.fuel = fuel
        if fuel == "petrol":
            raise MisconfigurationException("a diesel takes no petrol")
        if fuel == "water":
            raise RuntimeError("it broke")


@dataclass
class Wheels:
    """Plain data."""

    number: int = 4
    size: float = 15.0

    def __post_init__(self) -> None:
        if self.number < 1:
            raise ValueError("wheels.number must be at least 1")


class Car:
    """What is built."""

    def __init__(
        self,
        engine: Engine | None,
        name: str,
        wheels: Wheels | None = None,
        colour: Literal["red", "blue"] = "red",
        weight: float | None = None,
        extras: list[Engine] | Engine | None = None,
        tow: Engine | str | None = None,
    ) -> None:
        self.engine, self.name, self.wheels, self.extras, self.tow = engine, name, wheels, extras, tow


class Bicycle:
    """Not an `Engine`."""


HERE = __name__
BASE = f"""
car:
  class_path: {HERE}.Car
  init_args:
    name: x
    engine:
      class_path: {HERE}.Diesel
      init_args:
        power: 5
speed: 3
"""


@pytest.fixture
def parser() -> SettingsParser:
    parser = SettingsParser()
    parser.add_argument("-c", "--config", action="config")
    parser.add_subclass_arguments(Car, "car", required=True)
    parser.add_argument("--speed", type=int | None, default=1)
    parser.add_argument("--trainer.max_epochs", type=int, default=1)
    parser.add_argument("--trainer.logger", type=bool, default=True)
    return parser


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Writes files a.yaml, b.yaml, ... into the working folder and returns the flags that name them."""
    monkeypatch.chdir(tmp_path)

    def write(*texts: str) -> list[str]:
        flags: list[str] = []
        for letter, text in zip("abcdef", texts, strict=False):
            Path(f"{letter}.yaml").write_text(text)
            flags += ["--config", f"{letter}.yaml"]
        return flags

    return write


def told(parser: SettingsParser, args: list[str]) -> str:
    with pytest.raises(SettingsError) as error:
        parser.instantiate_classes(parser.parse_args(args))
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize(
    ("overlay", "expected"),
    [
        ("trainer:\n  max_epoch: 3", "line 2: there is no setting trainer.max_epoch; did you mean trainer.max_epochs?"),
        ("traner:\n  max_epochs: 3", "line 2: there is no setting traner.max_epochs; did you mean trainer.max_epochs?"),
        ("fit:\n  speed: 3", "line 2: there is no setting fit.speed"),
        ("\nspeed: fast", "line 2: speed is fast, but must be a whole number or null"),
        ("speed: 2.5", "line 1: speed is 2.5, but must be a whole number or null"),
        ("car:\n  init_args:\n    nam: y", "line 3: car.nam: Car takes no nam; did you mean name?"),
        (
            "car:\n  init_args:\n    zzz: y",
            "line 3: car.zzz: Car takes no zzz; it takes engine, name, wheels, colour, weight, extras, tow",
        ),
        ("car:\n  init_args:\n    name: 3", "line 3: car.name is 3, but must be text"),
        (
            "car:\n  init_args:\n    colour: bleu",
            "line 3: car.colour is bleu, but must be one of red, blue; did you mean blue?",
        ),
        ("car:\n  init_args:\n    engine:\n      init_args: {power: x}", "line 4: car.engine.power is x, but must be"),
        ("car:\n  init_args:\n    wheels: {numbr: 3}", "line 3: car.wheels.numbr: Wheels takes no numbr; did you mean"),
        ("car:\n  init_args:\n    wheels: {size: big}", "line 3: car.wheels.size is big, but must be a number"),
        (
            f"car:\n  init_args:\n    engine:\n      class_path: {HERE}.Disel",
            f"line 3: car.engine: there is no class or function {HERE}.Disel; did you mean {HERE}.Diesel?",
        ),
        (
            "car:\n  init_args:\n    engine: lit_trainer.losses.focal.FocalLos",
            "there is no class or function lit_trainer.losses.focal.FocalLos; did you mean lit_trainer.losses.focal",
        ),
        (
            "car:\n  init_args:\n    engine: lit_trainer.loses.focal.FocalLoss",
            "lit_trainer.loses.focal.FocalLoss; did you mean lit_trainer.losses.focal.FocalLoss?",
        ),
        ("car:\n  init_args:\n    engine: nowhere.at.All", "car.engine: there is no class or function nowhere.at.All"),
        (
            f"car:\n  init_args:\n    engine: {HERE}.Bicycle",
            f"line 3: car.engine: {HERE}.Bicycle is not a subclass of Engine",
        ),
        (
            f"car:\n  class_path: {HERE}.Car\n  nam: x",
            "line 1: car: the arguments of Car belong under init_args, not beside class_path",
        ),
        (
            f"car:\n  init_args:\n    extras:\n    - class_path: {HERE}.Engine\n      init_args: {{power: 1}}\n"
            f"    - class_path: {HERE}.Diesel\n      init_args: {{power: x}}",
            "line 7: car.extras.power is x, but must be a whole number",
        ),
    ],
)
def test_a_mistake_in_a_file_is_told_with_its_line(parser: SettingsParser, write, overlay: str, expected: str) -> None:
    message = told(parser, write(BASE, overlay))
    assert message.startswith("b.yaml, ")
    assert expected in message


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--trainer.max_epoch=3"], "there is no setting trainer.max_epoch; did you mean trainer.max_epochs?"),
        (["--trainer.max_epoch", "3"], "there is no setting trainer.max_epoch; did you mean trainer.max_epochs?"),
        (["--bogus"], "there is no setting bogus"),
        (["--trainer.bogus=1"], "there is no setting trainer.bogus"),
        (["extra"], "there is no setting extra"),
        (["--speed=fast"], "speed is fast, but must be a whole number or null"),
        (["--speed="], "speed is empty, but must be a whole number or null"),
        (["--car.nam=y"], "car.nam: Car takes no nam; did you mean name?"),
        (["--car.engin.power=3"], "car.engin.power: Car takes no engin.power; did you mean engine.power?"),
        (["--car.engine.power=x"], "car.engine.power is x, but must be a whole number"),
        (["--car.engine=Disel"], "car.engine: there is no class or function Disel"),
        (
            ["--car.extras+=Timr"],
            "car.extras: there is no class or function Timr; did you mean lightning.pytorch.callbacks.Timer?",
        ),
        (
            ["--car.help=FocalLos"],
            "car.help: there is no class or function FocalLos; did you mean lit_trainer.losses.focal.FocalLoss?",
        ),
        (["--config"], "argument -c/--config: expected one argument"),
    ],
)
def test_a_mistake_on_the_command_line_is_told(parser: SettingsParser, write, flags: list[str], expected: str) -> None:
    assert told(parser, write(BASE) + flags) == expected


def test_a_flag_is_not_blamed_on_the_file_that_sets_the_same(parser: SettingsParser, write) -> None:
    assert told(parser, [*write(BASE), "--speed", "x"]) == "speed is x, but must be a whole number or null"
    flags = [*write(BASE), "--car.init_args.engine.init_args.power=x"]
    assert told(parser, flags) == "car.engine.power is x, but must be a whole number"


def test_the_file_that_is_wrong_is_named_not_one_that_is_right(parser: SettingsParser, write) -> None:
    message = told(parser, write(BASE, "speed: fast", "speed: 3"))
    assert message == "b.yaml, line 1: speed is fast, but must be a whole number or null"


def test_what_is_missing_is_told(parser: SettingsParser, write) -> None:
    assert told(parser, []) == "car must be set, by a recipe (--config) or by flags"
    assert told(parser, write(f"car: {{class_path: {HERE}.Car}}")) == "a.yaml, line 1: car: Car needs name"


@pytest.mark.parametrize(
    ("power", "fuel", "expected"),
    [("-1", "x", "Diesel: engine.power is -1"), ("1", "petrol", "Diesel: a diesel takes no petrol")],
)
def test_what_a_constructor_refuses_comes_out_as_it_said_it(
    parser: SettingsParser, write, power: str, fuel: str, expected: str
) -> None:
    assert told(parser, [*write(BASE), f"--car.engine.power={power}", f"--car.engine.fuel={fuel}"]) == expected
    extra = f"car:\n  init_args:\n    extras:\n    - class_path: {HERE}.Diesel\n      init_args:"
    overlay = f"{extra} {{power: {power}, fuel: {fuel}}}"
    assert told(parser, write(BASE, overlay)) == expected


def test_plain_data_refuses_in_its_own_words(parser: SettingsParser, write) -> None:
    assert told(parser, [*write(BASE), "--car.wheels.number=0"]) == "Wheels: wheels.number must be at least 1"


def test_a_fault_in_a_constructor_stays_what_it_is(parser: SettingsParser, write) -> None:
    settings = parser.parse_args([*write(BASE), "--car.engine.fuel=water"])
    with pytest.raises(RuntimeError, match="it broke") as error:
        parser.instantiate_classes(settings)
    assert error.traceback[-1].name == "__init__"


def test_an_abbreviated_flag_is_a_mistake(parser: SettingsParser, write) -> None:
    assert told(parser, [*write(BASE), "--spee=3"]) == "there is no setting spee; did you mean speed?"


def test_later_files_win_and_flags_win_over_files(parser: SettingsParser, write) -> None:
    flags = write(BASE, "speed: 4\ncar: {init_args: {engine: {init_args: {power: 6}}}}")
    built = parser.instantiate_classes(parser.parse_args(flags))
    assert (built.speed, built.car.engine.power, type(built.car.engine)) == (4, 6, Diesel)
    built = parser.instantiate_classes(parser.parse_args([*flags, "--speed=5", "--car.engine.power=7"]))
    assert (built.speed, built.car.engine.power) == (5, 7)


@pytest.mark.parametrize("content", ["", "text,label\n", "a: 1", "class_path: x.Y"])
def test_a_text_that_is_the_path_of_a_file_stays_a_text(parser: SettingsParser, write, content: str) -> None:
    flags = write(BASE)
    Path("rows.csv").write_text(content)
    built = parser.instantiate_classes(parser.parse_args([*flags, "--car.tow=rows.csv"]))
    assert built.car.tow == "rows.csv"
    Path("b.yaml").write_text("car: {init_args: {tow: rows.csv}}")
    built = parser.instantiate_classes(parser.parse_args([*flags, "--config=b.yaml"]))
    assert built.car.tow == "rows.csv"


def test_lists_are_replaced_or_added_to(parser: SettingsParser, write) -> None:
    def extras(*args: str) -> list[int]:
        return [extra.power for extra in parser.instantiate_classes(parser.parse_args([*args])).car.extras]

    def one(plus: str, power: int) -> str:
        return f"car: {{init_args: {{extras{plus}: [{{class_path: {HERE}.Engine, init_args: {{power: {power}}}}}]}}}}"

    assert extras(*write(BASE, one("", 1), one("", 2))) == [2]
    assert extras(*write(BASE, one("", 1), one("+", 2))) == [1, 2]
    by_flag = [f"--car.extras+={HERE}.Diesel", "--car.extras.power=9"]
    assert extras(*write(BASE, one("", 1), one("+", 2)), *by_flag) == [1, 2, 9]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "--config: x.yaml holds nothing"),
        (b"# speed: 3\n", "--config: x.yaml holds nothing"),
        (b"speed:\n", "--config: x.yaml does not hold names with values"),
        (b"- speed\n", "--config: x.yaml does not hold names with values"),
        (b"speed: [3\n", "x.yaml, line 2: this is not YAML: expected ',' or ']', but got '<stream end>'"),
        (
            b"speed: 3\n\tcar: 3\n",
            "x.yaml, line 2: this is not YAML: found character '\\t' that cannot start any token",
        ),
        (b"speed: \xff\n", "--config: x.yaml is not text in UTF-8"),
        (
            b"speed: !!python/object/apply:os.getcwd []\n",
            "x.yaml, line 1: this is not YAML: could not determine a const",
        ),
    ],
)
def test_a_file_that_is_no_settings_is_refused(parser: SettingsParser, write, content: bytes, expected: str) -> None:
    flags = write(BASE)
    Path("x.yaml").write_bytes(content)
    assert told(parser, [*flags, "--config=x.yaml"]).startswith(expected)


def test_a_file_that_is_not_there_is_told_with_the_one_that_is(parser: SettingsParser, write) -> None:
    write(BASE, BASE)
    Path("recipe_sms.yaml").write_text(BASE)
    message = "--config: there is no file recipe_smss.yaml; did you mean recipe_sms.yaml?"
    assert told(parser, ["--config", "recipe_smss.yaml"]) == message
    assert told(parser, ["-c", "."]) == "--config: . cannot be read: Is a directory"


def test_the_files_of_flags_are_found() -> None:
    args = ["-c", "a", "--speed=1", "--config=b", "--config", "c", "--configs=d", "--config"]
    assert config_files(args) == [Path("a"), Path("b"), Path("c")]


@pytest.mark.parametrize(
    "text", ["", "\n", "what is this?\n  or that", '- a\n- b\n\n- c: "d"', "Does not validate against any", "Errors:"]
)
def test_an_error_of_an_unknown_form_is_told_as_it_is(text: str) -> None:
    assert find_mistake(text).told([]).split() == text.replace("- ", "").split()[: 1 if text.startswith("-") else None]


def test_a_type_of_an_unknown_name_is_told_by_its_name() -> None:
    text = "Parser key \"a.b\":\n  Expected a <class 'decimal.Decimal'>. Got value: x"
    assert find_mistake(text).told([]) == "a.b is x, but must be a Decimal"


def test_a_long_value_is_shortened() -> None:
    text = f"Parser key \"a\":\n  Expected a <class 'int'>. Got value: {'word ' * 100}"
    assert len(find_mistake(text).told([])) < 150


def test_suggestions_are_close_or_none() -> None:
    allowed = ["trainer.max_epochs", "trainer.max_steps", "speed"]
    assert did_you_mean("trainer.max_step", allowed) == "; did you mean trainer.max_steps?"
    assert did_you_mean("sped", allowed) == "; did you mean speed?"
    assert did_you_mean("trainer.zzz", allowed) == ""
    assert did_you_mean("zzz", allowed) == did_you_mean("zzz", []) == did_you_mean("", allowed) == ""


def test_only_an_unknown_setting_gets_the_list_of_what_is_allowed() -> None:
    assert with_allowed("Option 'x' is not accepted", ["a", "b.help"]) == "Option 'x' is not accepted (allowed: a)"
    assert with_allowed("something else", ["a"]) == "something else"


def test_a_place_is_not_found_in_what_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "broken.yaml").write_text("speed: [")
    mistake = find_mistake('Parser key "speed":\n  wrong')
    assert find_place(mistake, [tmp_path / "broken.yaml", tmp_path / "missing.yaml"]) is None
    assert math.isfinite(len(mistake.told([tmp_path / "missing.yaml"])))

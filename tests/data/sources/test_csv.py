"""CSV and TSV: what the file says is what comes out, or one line says where it cannot be read."""

import bz2
import gzip
import lzma
import zipfile

import pytest

from lit_trainer.data.sources.csv import CSVFile


@pytest.fixture
def write(tmp_path):
    def write(content: str | bytes, name: str = "rows.csv"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(path)

    return write


def columns(source: CSVFile, split: str = "train") -> dict:
    return source.load()[split][:]


def test_values_are_text_and_nothing_is_guessed(write):
    path = write("text,label\nNA,1\nnull,01\nnan,1.0\n 2 ,true\nNone,\n,\n")
    rows = columns(CSVFile(path))
    assert rows["text"] == ["NA", "null", "nan", " 2 ", "None", None]
    assert rows["label"] == ["1", "01", "1.0", "true", None, None]


def test_quoted_values_keep_delimiters_quotes_and_line_ends(write):
    path = write('text,label\r\n"a, ""b""\r\nc",x\r\n\r\nd\u2028e,y\r\n')
    assert columns(CSVFile(path)) == {"text": ['a, "b"\r\nc', "d\u2028e"], "label": ["x", "y"]}


@pytest.mark.parametrize("delimiter", ["\t", "\\t"])
def test_tab_separated_values(write, delimiter):
    path = write('text\tlabel\nsays "hi", he\tx\n', "rows.tsv")
    assert columns(CSVFile(path, delimiter=delimiter))["text"] == ['says "hi", he']


def test_quotes_can_be_plain_characters(write):
    path = write('text\tlabel\n"open\tx\n5" tape\ty\n')
    with pytest.raises(
        ValueError, match=r"rows.csv, line \d: .*; where quotes are plain characters set quotechar to null"
    ):
        CSVFile(path, delimiter="\t").load()
    assert columns(CSVFile(path, delimiter="\t", quotechar=None))["text"] == ['"open', '5" tape']


def test_a_quote_in_the_wrong_place_does_not_swallow_rows(write):
    path = write('text,label\na,x\n"b" c,y\nd,z\n')
    with pytest.raises(ValueError, match=r"rows.csv, line 3: ',' expected after '\"'"):
        CSVFile(path).load()


def test_very_long_texts_are_read(write):
    text = "word " * 100_000
    assert columns(CSVFile(write(f"text,label\n{text},x\n")))["text"] == [text]


def test_more_rows_than_one_batch_are_read_in_order(write):
    path = write("text,label\n" + "".join(f"t{row},x\n" for row in range(25_001)))
    assert columns(CSVFile(path))["text"] == [f"t{row}" for row in range(25_001)]


def test_another_encoding_and_a_byte_order_mark(write):
    assert columns(CSVFile(write("text,label\n£5,x\n".encode("latin-1")), encoding="latin-1"))["text"] == ["£5"]
    assert columns(CSVFile(write("\ufefftext,label\n£5,x\n"))) == {"text": ["£5"], "label": ["x"]}
    assert columns(CSVFile(write("text,label\n£5,x\n".encode("utf-16")), encoding="utf-16"))["text"] == ["£5"]
    bad = write(b"text,label\nok,x\n\xa35,x\n")
    assert columns(CSVFile(bad, encoding_errors="ignore"))["text"] == ["ok", "5"]


def test_a_wrong_encoding_names_the_line(write):
    path = write(b"text,label\n" + b"fine,x\n" * 5_000 + b"\xa35,x\n")
    with pytest.raises(ValueError, match=r"rows.csv, line 5002: not utf-8; set encoding to .* latin-1"):
        CSVFile(path).load()
    with pytest.raises(ValueError, match="there is no encoding 'utf8000'; usual ones are utf-8"):
        CSVFile(path, encoding="utf8000")


@pytest.mark.parametrize(
    ("ending", "compress"), [(".gz", gzip.compress), (".bz2", bz2.compress), (".xz", lzma.compress)]
)
def test_compressed_files_are_read(write, ending, compress):
    path = write(compress(b"text,label\na,x\n"), f"rows.csv{ending}")
    assert columns(CSVFile(path))["text"] == ["a"]
    broken = write(compress(b"text,label\na,x\n")[:-6], f"broken.csv{ending}")
    with pytest.raises(ValueError, match=f"broken.csv{ending} cannot be read"):
        CSVFile(broken).load()


def test_files_inside_a_zip(tmp_path):
    path = tmp_path / "rows.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("train.tsv", "text\tlabel\n&quot;it&#039;s&quot;\tx\n")
        archive.writestr("test.tsv", "text\tlabel\nb\ty\n")
    options = {"delimiter": "\t", "unescape_html": True, "strip": '"'}
    source = CSVFile({"train": "train.tsv", "test": "test.tsv"}, root=str(path), **options)
    assert {split: rows[:] for split, rows in source.load().items()} == {
        "train": {"text": ["it's"], "label": ["x"]},
        "test": {"text": ["b"], "label": ["y"]},
    }
    with pytest.raises(ValueError, match=r"has the files test.tsv, train.tsv; set root to it and name one"):
        CSVFile(str(path)).load()
    with pytest.raises(ValueError, match=r"there is no file trian.tsv in .*rows.zip; did you mean train.tsv\?"):
        CSVFile("trian.tsv", root=str(path)).load()


def test_all_files_of_a_zip_can_be_taken(tmp_path):
    path = tmp_path / "rows.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("b.csv", "text\nb\n")
        archive.writestr("a.csv", "text\na\n")
    assert columns(CSVFile("*", root=str(path)))["text"] == ["a", "b"]


def test_a_zip_with_one_file_is_that_file(tmp_path):
    path = tmp_path / "rows.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("inner.csv", "text,label\na,x\n")
    assert columns(CSVFile(str(path)))["text"] == ["a"]


def test_splits_several_files_and_wildcards(write, tmp_path):
    write("text,label\na,x\n", "data/part-1.csv")
    write("label,text\ny,b\n", "data/part-2.csv")
    write("text,label\nc,z\n", "data/dev.csv")
    loaded = CSVFile({"train": "part-*.csv", "dev": ["dev.csv"]}, root=str(tmp_path / "data")).load()
    assert loaded["train"][:] == {"text": ["a", "b"], "label": ["x", "y"]}
    assert list(loaded) == ["train", "dev"]
    assert columns(CSVFile(str(tmp_path / "data" / "*.csv")))["text"] == ["c", "a", "b"]


def test_paths_start_from_the_working_folder(write, tmp_path, monkeypatch):
    write("text,label\na,x\n")
    monkeypatch.chdir(tmp_path)
    assert columns(CSVFile("rows.csv"))["text"] == ["a"]


def test_files_of_other_columns_are_refused(write):
    first, second = write("text,label\na,x\n", "1.csv"), write("text,lable\na,x\n", "2.csv")
    with pytest.raises(ValueError, match=r"2.csv has the columns text, lable; .*1.csv text, label"):
        CSVFile([first, second]).load()


def test_names_can_be_given_where_the_file_has_none(write):
    path = write("a,x\nb,y\n")
    assert columns(CSVFile(path, columns=["text", "label"])) == {"text": ["a", "b"], "label": ["x", "y"]}


def test_columns_without_a_name_get_one_and_doubled_names_are_refused(write):
    assert columns(CSVFile(write("v1,v2,,\nham,hi,,there\n"))) == {
        "v1": ["ham"],
        "v2": ["hi"],
        "column_3": [None],
        "column_4": ["there"],
    }
    with pytest.raises(ValueError, match="more than one column called text"):
        CSVFile(write("text,label,text\na,x,b\n")).load()


@pytest.mark.parametrize(("line", "number"), [("b", 1), ("b,y,z", 3)])
def test_a_row_of_another_length_names_its_line(write, line, number):
    path = write(f'text,label\n"a\na",x\n{line}\n')
    with pytest.raises(
        ValueError, match=rf"rows.csv, line 4: {number} values for the 2 columns text, label \(delimiter ','"
    ):
        CSVFile(path).load()


def test_lists_are_parted(write):
    path = write("text,genres\na,Drama | War\nb,\nc,War\n")
    assert columns(CSVFile(path, lists={"genres": "|"}))["genres"] == [["Drama", "War"], [], ["War"]]
    with pytest.raises(ValueError, match=r"lists: .* has no column genre, only text, genres"):
        CSVFile(path, lists={"genre": "|"}).load()


@pytest.mark.parametrize("content", ["", "\n\n"])
def test_an_empty_file_is_an_error(write, content):
    with pytest.raises(ValueError, match=r"rows.csv is empty"):
        CSVFile(write(content)).load()


def test_a_header_alone_is_an_error(write):
    path = write("text,label\n")
    with pytest.raises(ValueError, match=r"the train split has no rows: .*rows.csv"):
        CSVFile(path).load()


def test_a_missing_file_names_a_close_one(write, tmp_path):
    write("text,label\na,x\n")
    with pytest.raises(ValueError, match=rf"there is no file row.csv in {tmp_path}; did you mean rows.csv\?"):
        CSVFile(str(tmp_path / "row.csv")).load()
    with pytest.raises(ValueError, match=r"is a folder; name the files in it"):
        CSVFile(str(tmp_path)).load()
    with pytest.raises(ValueError, match="root: there is no folder or zip file /no/where"):
        CSVFile("rows.csv", root="/no/where").load()
    with pytest.raises(ValueError, match="files: there is none given"):
        CSVFile({}).load()
    with pytest.raises(ValueError, match="files: there is none given for test"):
        CSVFile({"train": str(tmp_path / "rows.csv"), "test": []}).load()


def test_options_that_cannot_be_are_refused_at_once():
    with pytest.raises(ValueError, match="delimiter is ', ', not one character"):
        CSVFile("rows.csv", delimiter=", ")


def test_a_changed_file_gives_its_new_rows_even_with_its_old_date(write, tmp_path):
    import os

    path = write("text,label\nold,x\n")
    os.utime(path, (1, 1))
    assert columns(CSVFile(path))["text"] == ["old"]
    write("text,label\nnew,x\n")
    os.utime(path, (1, 1))
    assert columns(CSVFile(path))["text"] == ["new"]


def test_other_settings_give_other_rows_of_the_same_file(write):
    path = write("text;a,label\n1;2,x\n")
    assert list(columns(CSVFile(path))) == ["text;a", "label"]
    assert list(columns(CSVFile(path, delimiter=";"))) == ["text", "a,label"]


def test_rows_are_read_once_and_are_the_same_table_from_then_on(write, cache, monkeypatch):
    path = write("text,label\na,x\n")
    first = CSVFile(path).load()["train"]
    monkeypatch.setattr(CSVFile, "_read", lambda *_: pytest.fail("it is read again"))
    second = CSVFile(path).load()["train"]
    assert second._fingerprint == first._fingerprint
    assert second.cache_files == first.cache_files
    assert str(cache) in first.cache_files[0]["filename"]


def test_a_failed_read_leaves_nothing_behind(write, cache):
    path = write("text,label\na,x\nb\n")
    for _ in range(2):
        with pytest.raises(ValueError, match="line 3"):
            CSVFile(path).load()
    assert not list(cache.rglob("*.arrow"))

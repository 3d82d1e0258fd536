"""A mistake in the settings, told in one line: where it stands, what was given and what is allowed.

jsonargparse describes a wrong value by every way in which it could have been right, over twenty or more lines. The
way that got furthest is the one that was meant: it is found here and told, and its place in the files looked up.
"""

import ast
import difflib
import importlib
import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import yaml  # type: ignore[import-untyped]

_KEY = re.compile(r'Parser key "([^"]+)":')
_CLASS = re.compile(r"Problem with given class_path '([^']+)':")
_FLAG = re.compile(r"--(\S+): (.*)")
_UNION = "Does not validate against any of the Union subtypes"
_GIVEN = re.compile(r"[. ]*Got value: (.*)$")
_NESTED_FLAG = re.compile(r"NestedArg\(key='[^']*', val='(.*)'\)$")
_UNKNOWN = re.compile(
    r"Option '(?P<key>[^']+)' is not accepted"
    r"|Group '(?P<group>[^']+)' does not accept option '(?P<option>[^']+)'"
    r"|unrecognized arguments: (?:--)?(?P<flag>[^\s=]+?)\+?(?:[\s=]|$)"
)
_ALLOWED = re.compile(r" \(allowed: ([^)]*)\)")
_REQUIRED = re.compile(r"the following arguments are required: (.*)")
_IMPORT = re.compile(r"module '.*' has no attribute|No module named|Expected a dot import path string: (.*)")
_NO_SUBCLASS = re.compile(r"Import path (?:(\S+) )?does not correspond to a subclass of (\S+)")
_EXPECTED = re.compile(r"Expected a(?:n)? (<class '[^']*'>|typing\.Literal\[.*\])")
_UNTOLD = re.compile(r"Expected a <class 'NoneType'>|Expected a path|Not a valid subclass|Expected an instantiatable")
_SHORT_NAMES = [f"lightning.pytorch.{part}" for part in ("callbacks", "loggers", "strategies", "plugins", "profilers")]
_TYPES = {
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "list": "a list",
    "dict": "a mapping",
    "NoneType": "null",
}


@dataclass(frozen=True)
class Mistake:
    """What is wrong with one setting.

    Args:
        key: The setting's dotted key as on the command line; empty where the mistake is not about one.
        text: What is wrong with it, in one line without the key's place.
        owner: Class path of the object that the setting is an argument of; empty for none.
        given: The value that was given, as text; empty where it does not matter.
    """

    key: str
    text: str
    owner: str = ""
    given: str = ""

    def told(self, files: Sequence[Path]) -> str:
        """Returns the line to show.

        Args:
            files: The configuration files in the order in which they were read, without those that the command line
                overrides here.
        """
        place = find_place(self, files) if self.key else None
        return f"{place}: {self.text}" if place else self.text


def find_mistake(message: str) -> Mistake:
    """Finds what is wrong in an error message of jsonargparse.

    Args:
        message: Of any number of lines. What has an unknown form is told as it is, in one line.
    """
    ways = list(_ways(message))
    best = max(ways, key=lambda way: (way.depth, not _UNTOLD.match(way.reason)))
    # An explicit list of classes is a list of ways that all say the same of one class: the first is the one meant.
    return _told(best, [way.reason for way in ways if way.depth == best.depth and way.keys == best.keys])


def with_allowed(message: str, settings: Iterable[str]) -> str:
    """Adds to a message of an unknown setting which ones there are, for `find_mistake` to choose from.

    Args:
        message: As jsonargparse words it.
        settings: The names of what is allowed there.
    """
    if not _UNKNOWN.match(message):
        return message
    return f"{message} (allowed: {', '.join(name for name in settings if not name.endswith('help'))})"


def did_you_mean(given: str, allowed: Iterable[str]) -> str:
    """Returns ``; did you mean ...?`` if one of what is allowed is close to what was given, else nothing.

    Args:
        given: A name, of one part or of several with dots between.
        allowed: The names that there are.
    """
    allowed = list(allowed)
    parent, _, name = given.rpartition(".")
    siblings = {other.rpartition(".")[2]: other for other in allowed if other.rpartition(".")[0] == parent}
    close = [siblings[other] for other in difflib.get_close_matches(name, siblings, n=1)]
    if not siblings:
        close = difflib.get_close_matches(given, allowed, n=1, cutoff=0.8)
    first, _, rest = given.partition(".")
    if not close and parent and first not in {other.partition(".")[0] for other in allowed}:
        close = [f"{other}.{rest}" for other in difflib.get_close_matches(first, allowed, n=1)]
    return f"; did you mean {close[0]}?" if close else ""


# -- where it stands -----------------------------------------------------------------------------------------------


def find_place(mistake: Mistake, files: Sequence[Path]) -> str | None:
    """Returns ``FILE, line N`` of the last place in the files that sets a key, preferably to the value given."""
    found: str | None = None
    for file in reversed(files):
        try:
            root = yaml.compose(file.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
        except (OSError, ValueError, yaml.YAMLError):
            continue
        for key, value in _settings(root, mistake.key.split("."), mistake.owner):
            place = f"{file}, line {key.start_mark.line + 1}"
            if isinstance(value, yaml.ScalarNode) and value.value == mistake.given:
                return place
            found = found or place
    return found


def _settings(node: yaml.Node | None, keys: list[str], owner: str) -> Iterator[tuple[yaml.Node, yaml.Node]]:
    """Yields the keys and values in a file that are what a dotted key means; it leaves out levels and positions."""
    if isinstance(node, yaml.SequenceNode):
        items = [item for item in node.value if _class_path(item) == owner] or node.value
        for item in items:
            yield from _settings(item, keys, owner)
    if not isinstance(node, yaml.MappingNode):
        return
    for key, value in node.value:
        if key.value in ("init_args", "dict_kwargs"):
            yield from _settings(value, keys, owner)
        elif key.value.removesuffix("+") == keys[0]:
            if len(keys) == 1:
                yield key, value
            else:
                yield from _settings(value, keys[1:], owner)


def _class_path(node: yaml.Node) -> str:
    pairs = node.value if isinstance(node, yaml.MappingNode) else []
    return next((value.value for key, value in pairs if key.value == "class_path"), "")


# -- what it is ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Way:
    """One way in which a value could have been right, and what kept it from that."""

    reason: str
    keys: tuple[str, ...] = ()
    owner: str = ""
    given: str = ""
    depth: int = 0


def _ways(message: str) -> Iterator[_Way]:
    """Reads a message's tree of keys, classes and alternatives, and yields its leaves."""
    text = textwrap.dedent(message.strip("\n"))
    lines = text.splitlines()
    if match := _KEY.match(text):
        for way in _ways(text[match.end() :]):
            yield replace(way, keys=(match[1], *way.keys), depth=way.depth + 1)
    elif match := _CLASS.match(text):
        for way in _ways(text[match.end() :]):
            yield replace(way, owner=way.owner or match[1], depth=way.depth + 1)
    elif text.startswith(_UNION) and "Errors:" in lines:
        errors = lines[lines.index("Errors:") + 1 :]
        end = next((i for i, line in enumerate(errors) if line.startswith("Given value type:")), len(errors))
        given = " ".join(errors[end + 1 :]).removeprefix("Given value: ")
        for way in _ways_of_items(errors[:end]):
            yield replace(way, given=way.given or _plain(given))
    elif text.startswith("- "):
        yield from _ways_of_items(lines)
    else:
        reason = " ".join(text.split())
        flag = _FLAG.match(reason)
        keys, reason = ((flag[1],), flag[2]) if flag else ((), reason)
        value = _GIVEN.search(reason)
        yield _Way(_GIVEN.sub("", reason), keys, given=_plain(value[1]) if value else "")


def _ways_of_items(lines: list[str]) -> Iterator[_Way]:
    items: list[list[str]] = []
    for line in textwrap.dedent("\n".join(lines)).splitlines():
        if line.startswith("- ") or not items:
            items.append([line.removeprefix("- ")])
        else:
            items[-1].append(line.removeprefix("  "))
    for item in items:
        yield from _ways("\n".join(item))


def _plain(given: str) -> str:
    match = _NESTED_FLAG.match(given)
    return textwrap.shorten(match[1] if match else given, 80, placeholder="...")


def _told(way: _Way, reasons: list[str]) -> Mistake:
    key, owner = ".".join(way.keys), way.owner.rpartition(".")[2]
    if match := _UNKNOWN.match(way.reason):
        name = match["key"] or match["flag"] or f"{match['group']}.{match['option']}"
        return _unknown(way, key, name)
    if match := _REQUIRED.match(way.reason):
        missing = match[1].replace(", ", " and ")
        text = (
            f"{key}: {owner} needs {missing}" if key else f"{missing} must be set, by a recipe (--config) or by flags"
        )
        return Mistake(key, text, way.owner)
    if match := _IMPORT.match(way.reason):
        path = match[1] or way.owner
        return Mistake(key, f"{key}: {_not_importable(path, way.reason)}", path, path)
    if match := _NO_SUBCLASS.match(way.reason):
        given = match[1] or way.given
        return Mistake(key, f"{key}: {given} is not a subclass of {match[2]}", way.owner, given)
    expected = [match[1] for reason in reasons if (match := _EXPECTED.match(reason))]
    if expected and _EXPECTED.match(way.reason):
        return Mistake(
            key, f"{key} is {way.given or 'empty'}, but must be {_one_of(expected, way.given)}", way.owner, way.given
        )
    return Mistake(key, f"{key}: {way.reason}" if key else way.reason, way.owner, way.given)


def _unknown(way: _Way, key: str, name: str) -> Mistake:
    match = _ALLOWED.search(way.reason)
    allowed = match[1].split(", ") if match else []
    full = f"{key}.{name}" if key else name
    if not way.owner:
        return Mistake(full, f"there is no setting {full}{did_you_mean(full, allowed)}")
    owner = way.owner.rpartition(".")[2]
    if name == "class_path":
        return Mistake(key, f"{key}: the arguments of {owner} belong under init_args, not beside class_path", way.owner)
    hint = did_you_mean(name, allowed) or (f"; it takes {', '.join(allowed)}" if allowed else "")
    return Mistake(full, f"{full}: {owner} takes no {name}{hint}", way.owner)


def _one_of(expected: list[str], given: str) -> str:
    """Says in words which types and values are allowed."""
    words: list[str] = []
    values: list[str] = []
    for name in dict.fromkeys(expected):
        if name.startswith("typing.Literal"):
            values += [str(value) for value in ast.literal_eval(name.removeprefix("typing.Literal"))]
        else:
            short = name.removeprefix("<class '").removesuffix("'>").rpartition(".")[2]
            words.append(_TYPES.get(short, f"a {short}"))
    if not values:
        return " or ".join(words)
    choices = list(dict.fromkeys(values)) + [word for word in words if word != "null"]
    null = ", or null" if "null" in words else ""
    return f"one of {', '.join(choices)}{null}{did_you_mean(given, choices)}"


# -- class paths ---------------------------------------------------------------------------------------------------


def _not_importable(path: str, reason: str) -> str:
    match = re.match("No module named '(.*)'", reason)
    if match and not f"{path}.".startswith(f"{match[1]}."):
        return f"{path} cannot be imported: {reason}"  # it is there, but needs a package that is not
    module, _, name = path.rpartition(".")
    candidates = [*_names_in(module), *_own_names(), *(path for module in _SHORT_NAMES for path in _names_in(module))]
    by_name = {candidate.rpartition(".")[2]: candidate for candidate in reversed(candidates)}
    close = difflib.get_close_matches(name, by_name, n=1)
    return f"there is no class or function {path}" + (f"; did you mean {by_name[close[0]]}?" if close else "")


def _names_in(module: str) -> list[str]:
    """Lists what an importable module has to offer."""
    try:
        names = dir(importlib.import_module(module))
    except Exception:  # a path is only being guessed at: whatever its import raises, there is nothing to offer
        return []
    return [f"{module}.{name}" for name in names if not name.startswith("_")]


def _own_names() -> Iterator[str]:
    """Yields the paths of all public classes and functions of this package, without importing them."""
    package = Path(__file__).parent
    for file in sorted(package.rglob("*.py")):
        module = ".".join(file.relative_to(package.parent).with_suffix("").parts).removesuffix(".__init__")
        for name in re.findall(r"^(?:class|def) ([A-Za-z]\w*)", file.read_text(encoding="utf-8"), re.MULTILINE):
            yield f"{module}.{name}"

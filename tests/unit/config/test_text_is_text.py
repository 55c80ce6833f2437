"""Text arrives as the characters that were typed, wherever it is typed and wherever the schema has text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields, is_dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, get_args, get_origin

import pytest
import yaml
from fuzz import tried
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from ftslurm.config.compose import compose, dump, load, sweep
from ftslurm.config.notation import quoted
from ftslurm.config.schema import MISSING as REQUIRED
from ftslurm.config.schema import Config
from ftslurm.config.setting_names import declared, kinds
from ftslurm.config.typed_values import kinds_of

# Words to which YAML 1.1, Hydra's grammar, OmegaConf, shells or Slurm give a meaning.
SURPRISING = [
    *("1.10", "12e4567", "2024_01_02", "1_000", "0x10", "0b1", "010", "+1", ".5", "5.", "1e6", "-0", ".inf", "nan"),
    *(
        "12:00:00",
        "1:30",
        "2024-01-02",
        "12e",
        "True",
        "FALSE",
        "yes",
        "no",
        "on",
        "off",
        "y",
        "N",
        "None",
        "~",
        "Null",
    ),
    *("", " ", " a ", "a b", "a\tb", "a\nb\n", "\r\n", "\\", "a\\", "C:\\new\\t", '\\"', "it's", '5"', "''", '"', "'a"),
    *("$HOME", "$", "${", "${run.name}", "\\${x}", "\\\\${x", "$${a}", "{RANK}", "{", "}", "{}", "{a: b}", "[a|h100]"),
    *("[INST] hi [/INST]", "{RANK}-{WORLD_SIZE}", "[a] [b]", "[1],[2]", "{a: 1}{b: 2}", "[a,,b]", "[a(]", "{a: 1,}"),
    *("a,b", ",", "a, b", "[a,b]", "[", "]", "a[1,2]", "[1],[2]", "(", ")", "f(x)", "range(1,3)", "choice(a)", "a:b"),
    *(
        "mlx5_0:1,mlx5_1:1",
        "log/epoch=999-step=87999.ckpt",
        "trainer.lr=0.1",
        "--lr=1e-3",
        "-",
        "--",
        "@x",
        "`id`",
        "%j",
    ),
    *("#", "a #b", "# a", "&a", "*a", "!x", "|", ">", "a: b", "- a", "? a", "<<", "=", "...", "---", "!!int 3", "a=b"),
    *("ü", "日本", "\u2028", "\x85", "\x1b[31m", "\x7f", "\ufeff", "\U0001f600", "\udce9", "e\u0301"),
]
NASTY = st.text(st.sampled_from("\\\"'${}[](),:=#~ \n\tab1.-_é"), max_size=8)
ANY = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
TEXTS = st.sampled_from(SURPRISING) | NASTY | ANY
MARK = "???"  # OmegaConf's, of a value that must be given


class Position(tuple[str | int, ...]):
    """Where a text may stand: the names and places on the way to it, as ("job", "args", 0)."""

    @property
    def key(self) -> str:
        """The setting."""
        return ".".join(map(str, self[:2]))

    def value(self, text: str) -> Any:
        """Return the value of the setting with this text in it."""
        return nested(self[2:], text, dict(TYPES)[self.key])

    def of(self, config: Config) -> Any:
        found: Any = config
        for name in self:
            found = getattr(found, name) if is_dataclass(found) else found[name]
        return found


TYPES = [(one.key, one.kind) for one in declared()]


def nested(path: Sequence[str | int], text: str, kind: Any) -> Any:
    """Return a text inside lists and mappings; sections have what they must have."""
    if not path:
        return text
    if isinstance(path[0], int):
        return [nested(path[1:], text, kind)]
    section = next((one for one in inner(kind) if is_dataclass(one)), None)
    must = [one.name for one in fields(section) if one.default == REQUIRED] if section else []
    return dict.fromkeys(must, "1") | {path[0]: nested(path[1:], text, Any)}


def inner(kind: Any) -> Iterator[Any]:
    """Generate a type and all that may be in it."""
    for one in kinds_of(kind):
        yield one
        if get_origin(one) is list:
            yield from inner(get_args(one)[0])


def positions(kind: Any, depth: int = 2) -> Iterator[tuple[str | int, ...]]:
    """Generate the ways to the texts in values of a type."""
    for one in kinds_of(kind):
        if one is str:
            yield ()
        elif is_dataclass(one):
            for name, inside in kinds(one).items():
                yield from ((name, *way) for way in positions(inside, depth))
        elif get_origin(one) in (list, dict) and depth:
            name: str | int = 0 if get_origin(one) is list else "some-name"
            yield from ((name, *way) for way in positions(get_args(one)[-1], depth - 1))


POSITIONS = sorted({Position((*key.split("."), *way)) for key, kind in TYPES for way in positions(kind)}, key=str)
ALONE = [one for one in POSITIONS if all(not isinstance(way, int) for way in one)]  # scalars: key=TEXT


def options(position: Position) -> tuple[Any, ...]:
    """Return the types that may stand at a position."""
    found: tuple[Any, ...] = (Config,)
    for name in position:
        inside = [
            kinds(one)[str(name)] if is_dataclass(one) else get_args(one)[-1] for one in found if one_of(one, name)
        ]
        found = tuple(each for one in inside for each in kinds_of(one))
    return found


def one_of(kind: Any, name: str | int) -> bool:
    shape = list if isinstance(name, int) else dict
    return get_origin(kind) is shape or (is_dataclass(kind) and str(name) in kinds(kind))


def reference(text: str) -> str:
    """Return a text as the docs say: a backslash before ${, and those before it twice."""
    head, sign, rest = text.partition("${")
    backslashes = len(head) - len(head.rstrip("\\"))
    return f"{head}{chr(92) * (backslashes + 1)}{sign}{reference(rest)}" if sign else text


def typed(value: Any) -> str:
    """Return a value as a careful person types it: quotes around all text."""
    if isinstance(value, list):
        return f"[{','.join(map(typed, value))}]"
    if isinstance(value, dict):
        return f"{{{','.join(f'{name}: {typed(one)}' for name, one in value.items())}}}"
    return quoted(value)


def may_stand_alone(position: Position, text: str) -> bool:
    """Return whether the docs say that a text needs no quotes behind its key."""
    among = options(position)
    quotes = len(text) > 1 and text[0] == text[-1] and text[0] in "\"'"
    listed = text[:1] == "[" and text[-1:] == "]" and any(get_origin(one) is list for one in among)
    mapped = text[:1] == "{" and text[-1:] == "}" and any(get_origin(one) is dict for one in among)
    if str in among and is_no_whole(text):
        listed = mapped = False
    word = text.lower() in ("null", "~", "true", "false") and among != (str,)
    return not (quotes or listed or mapped or word or text == MARK)


def is_no_whole(text: str) -> bool:
    """Return whether a text between brackets is surely no list and no mapping, with or without quotes in it."""
    depths = list(accumulate((one in "([{") - (one in ")]}") for one in text))
    divided = depths[-1:] != [0] or 0 in depths[:-1] or ",," in text
    return text == "{}" or (divided and not set("'\"") & set(text))


def config_of(*words: str, **more: Any) -> Config:
    return compose(words, **more)


def without_name(config: Config) -> dict[str, Any]:
    return asdict(config)


def assigned(texts: Sequence[str], at: Sequence[Position]) -> list[tuple[Position, str]]:
    """Return positions with their texts: one for each setting, as two in one setting would hide each other."""
    found = {position.key: (position, text) for position, text in zip(at, texts, strict=True) if text != MARK}
    return list(found.values())


DRAWN = st.lists(TEXTS, min_size=len(POSITIONS), max_size=len(POSITIONS)), st.permutations(POSITIONS)


def searched(examples: int) -> settings:
    """As `tried`, and an example that fails is shown as it was found: to shorten it would take minutes."""
    return settings(tried(examples), phases=(Phase.explicit, Phase.generate))


def test_the_schema_has_text_in_many_places() -> None:
    assert {("job", "args", 0), ("job", "env", "some-name"), ("run", "name"), ("cluster", "account")} < {*POSITIONS}
    assert {("cluster", "sbatch", "some-name"), ("cluster", "ranges", 0, "time"), ("job", "python")} < {*POSITIONS}
    assert len(POSITIONS) > 40


@searched(16)
@given(*DRAWN)
def test_quoted_text_arrives_in_every_place(texts: Sequence[str], order: Sequence[Position]) -> None:
    given_ = assigned(texts, order)
    config = config_of(*(f"{position.key}={typed(position.value(text))}" for position, text in given_))
    assert [position.of(config) for position, _ in given_] == [text for _, text in given_]


@searched(16)
@given(*DRAWN)
def test_text_alone_behind_its_key_needs_no_quotes(texts: Sequence[str], order: Sequence[Position]) -> None:
    given_ = [one for one in assigned(texts, order) if one[0] in ALONE and may_stand_alone(*one)]
    config = config_of(*(f"{'.'.join(map(str, position))}={reference(text)}" for position, text in given_))
    assert [position.of(config) for position, _ in given_] == [text for _, text in given_]


@searched(16)
@given(*DRAWN)
def test_text_stays_in_files_when_it_is_resumed_and_in_what_cfg_prints(
    tmp_path_factory: pytest.TempPathFactory, texts: Sequence[str], order: Sequence[Position]
) -> None:
    folder, given_ = tmp_path_factory.mktemp("run"), assigned(texts, order)
    config = config_of(*(f"{position.key}={typed(position.value(text))}" for position, text in given_))
    file = folder / "job/mine.yaml"
    file.parent.mkdir()
    file.write_text(dump(config), errors="surrogateescape")
    assert load(file) == config
    assert config_of("groups.count=2", base=config) == config
    assert config_of("job=mine", config_dir=str(folder)) == config


@searched(16)
@given(*DRAWN, st.sampled_from("'\""))
def test_text_in_quotes_in_a_preset_arrives(
    tmp_path_factory: pytest.TempPathFactory, texts: Sequence[str], order: Sequence[Position], quote: str
) -> None:
    given_ = assigned(texts, order)
    tree: dict[str, Any] = {}
    for position, text in given_:
        section, name = position.key.split(".")
        tree.setdefault(section, {})[name] = position.value(reference(text))
    config = preset(tmp_path_factory.mktemp("conf"), yaml.safe_dump(tree, default_style=quote))
    assert [position.of(config) for position, _ in given_] == [text for _, text in given_]


def preset(folder: Path, text: str) -> Config:
    """Compose with a preset of this text."""
    (folder / "job").mkdir(exist_ok=True)
    (folder / "job/mine.yaml").write_text(f"# @package _global_\n{text}", encoding="utf-8")
    return config_of("job=mine", config_dir=str(folder))


def is_plain(text: str) -> bool:
    """Return whether YAML 1.2 takes a text without quotes, in lists and mappings, too."""
    analysis = yaml.Dumper("").analyze_scalar(text)
    return analysis.allow_flow_plain and analysis.allow_block_plain and not analysis.multiline


@searched(16)
@given(*DRAWN)
@example([text for text in SURPRISING if is_plain(text)][: len(POSITIONS)], POSITIONS)
def test_text_without_quotes_in_a_preset_arrives(
    tmp_path_factory: pytest.TempPathFactory, texts: Sequence[str], order: Sequence[Position]
) -> None:
    padded = [*texts, *["x"] * (len(order) - len(texts))]
    given_ = [(at, text) for at, text in assigned(padded, order) if is_plain(text) and may_stand_alone(at, text)]
    sections: dict[str, list[str]] = {}
    for position, text in given_:
        section, name = position.key.split(".")
        sections.setdefault(section, []).append(f"  {name}: {flow(position.value(reference(text)))}\n")
    config = preset(
        tmp_path_factory.mktemp("conf"), "".join(f"{name}:\n{''.join(lines)}" for name, lines in sections.items())
    )
    assert [position.of(config) for position, _ in given_] == [text for _, text in given_]


def flow(value: Any) -> str:
    """Return a value in YAML's flow style, with plain text."""
    if isinstance(value, list):
        return f"[{', '.join(map(flow, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{name}: {flow(one)}' for name, one in value.items())}}}"
    return str(value)


# Runs of a sweep have other names, and folders of their own.
IN_SWEEPS = [one for one in POSITIONS if one.key not in ("run.name", "run.dir", "checkpoint.dir")]


@searched(16)
@given(st.lists(TEXTS.filter(lambda text: text != MARK), min_size=2, max_size=3), st.sampled_from(IN_SWEEPS))
def test_text_arrives_in_each_run_of_a_sweep(texts: Sequence[str], position: Position) -> None:
    words = ",".join(typed(position.value(text)) for text in texts)
    for one in (words, f"choice({words})"):
        runs = sweep([f"{position.key}={one}"])
        assert sorted(position.of(run) for run in runs) == sorted(texts)


WORDS = ["1.10", "12e4567", "true", "null", "2024_01_02", "0x10", "~", "yes", "1e6", "010", ".5", "12:00:00", "+1"]


def test_words_without_quotes_arrive_in_each_run_of_a_sweep() -> None:
    runs = sweep([f"job.args.x={','.join(WORDS)}", "job.env.X=a,b"])
    meant = {"true": True, "null": None, "~": None}
    assert [run.job.args["x"] for run in runs] == [meant.get(word, word) for word in WORDS for _ in "ab"]
    assert [run.job.env["X"] for run in runs] == ["a", "b"] * len(WORDS)


@pytest.mark.parametrize(
    "words", [WORDS, ["--lr=1e-3", "trainer.lr=0.1", "it's", 'filter="a,b"', "x=[[1,2],[3]]", "a b"]]
)
def test_words_in_a_list_arrive_as_they_are(words: list[str]) -> None:
    assert config_of(f"job.args=[{','.join(words)}]").job.args == words
    assert config_of(f"job.args.x=[{', '.join(words)}]").job.args == {"x": words}
    assert config_of(f"cluster.srun=[{','.join(words)}]", "job.args=[]").cluster.srun == words
    (first, second) = sweep([f"job.args=[{','.join(words)}],[a]"])
    assert (first.job.args, second.job.args) == (words, ["a"])

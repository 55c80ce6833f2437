"""Which files are copied, as a function of names and sizes."""

from __future__ import annotations

import pytest

from ftslurm.code.selection import MOST_FILES, Rules, choose, late

MB = 1 << 20


def test_code_and_small_data_are_copied_keys_and_large_files_are_not() -> None:
    sizes = {
        "train.py": 9,
        "conf/a.yaml": 9,
        "logo.png": MB,
        ".env": 9,
        "keys/host.pem": 9,
        "id_rsa": 9,
        "w.bin": 30 * MB,
    }
    assert choose(sizes, frozenset(sizes), Rules()) == {"train.py", "conf/a.yaml", "logo.png"}


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        (Rules(include=("w.bin", ".env")), {"a.py", "sub/b.py", "sub/c.ipynb", "w.bin", ".env"}),
        (Rules(exclude=("*.ipynb",)), {"a.py", "sub/b.py"}),
        (Rules(exclude=("sub/",)), {"a.py"}),
        (Rules(exclude=("sub/b.py",)), {"a.py", "sub/c.ipynb"}),
        (Rules(exclude=("ub",)), {"a.py", "sub/b.py", "sub/c.ipynb"}),
    ],
)
def test_patterns_name_files_and_folders_as_in_gitignore(rules: Rules, expected: set[str]) -> None:
    sizes = {"a.py": 1, "sub/b.py": 1, "sub/c.ipynb": 1, "w.bin": 30 * MB, ".env": 1}
    assert choose(sizes, frozenset(), rules) == expected


def test_of_too_much_the_data_that_git_does_not_know_is_left_out_first() -> None:
    sizes = {"a.py": 1, "kept.bin": 8 * MB} | {f"data/{i}.npy": 9 * MB for i in range(20)}
    assert choose(sizes, frozenset({"kept.bin"}), Rules()) == {"a.py", "kept.bin"}
    assert "more than 100 MB" in str(choose(sizes, frozenset(sizes), Rules()))
    assert "job.snapshot_exclude" in str(choose({f"{i}.py": 1 for i in range(MOST_FILES + 1)}, frozenset(), Rules()))


def test_ignored_modules_are_copied_other_ignored_files_only_if_named() -> None:
    assert late("pkg/_version.py", 100, Rules())
    assert late("pkg/_C.so", 5 * MB, Rules())
    assert not late("pkg/_C.so", 50 * MB, Rules())
    assert not late("pkg/notes.txt", 5, Rules())
    assert late("pkg/notes.txt", 5, Rules(include=("pkg",)))
    assert not late("pkg/_version.py", 5, Rules(exclude=("pkg",)))

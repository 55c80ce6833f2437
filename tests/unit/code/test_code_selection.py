"""Which files are copied, as a function of names and sizes."""

from __future__ import annotations

import pytest

from ftslurm.code.selection import MOST_FILES, choose, late

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
        "C.so": 5 * MB,
        "big.json": 2 * MB,
    }
    assert choose(sizes, frozenset(sizes), ()) == {"train.py", "conf/a.yaml", "logo.png", "C.so", "big.json"}
    assert choose(sizes, frozenset(), ()) == {"train.py", "conf/a.yaml", "logo.png", "C.so"}


@pytest.mark.parametrize(
    ("exclude", "expected"),
    [
        ("*.ipynb", {"a.py", "sub/b.py"}),
        ("sub/", {"a.py"}),
        ("sub/b.py", {"a.py", "sub/c.ipynb"}),
        ("ub", {"a.py", "sub/b.py", "sub/c.ipynb"}),
    ],
)
def test_patterns_name_files_and_folders_as_in_gitignore(exclude: str, expected: set[str]) -> None:
    sizes = {"a.py": 1, "sub/b.py": 1, "sub/c.ipynb": 1, "w.bin": 30 * MB, ".env": 1}
    assert choose(sizes, frozenset(sizes), (exclude,)) == expected


def test_too_much_is_not_copied() -> None:
    sizes = {"a.py": 1, "kept.bin": 8 * MB} | {f"data/{i}.npy": 9 * MB for i in range(20)}
    assert "more than 100 MB" in str(choose(sizes, frozenset(sizes), ()))
    assert "job.snapshot_exclude" in str(choose({f"{i}.py": 1 for i in range(MOST_FILES + 1)}, frozenset(), ()))


def test_ignored_modules_are_copied_and_no_other_ignored_files() -> None:
    assert late("pkg/_version.py", 100, ())
    assert late("pkg/_C.so", 5 * MB, ())
    assert not late("pkg/_C.so", 50 * MB, ())
    assert not late("pkg/notes.txt", 5, ())
    assert not late("pkg/_version.py", 5, ("pkg",))

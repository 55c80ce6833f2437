"""Decides which addresses of checkpoints are folders, and which are object stores; nothing else does.

A folder's files have owners, who are checked before anything in it is unpickled. Of fsspec's protocols only those of
object stores are let through: others read files of this machine (zip, git, dvc, caches, chains with `::`), or those of
a server that have owners too (sftp, smb), and replace no file in one step.
"""

from __future__ import annotations

import re

STORES = frozenset({"abfs", "abfss", "az", "gcs", "gs", "oci", "oss", "s3", "s3a", "tos"})


def plain(address: str) -> str:
    """Return the path if an address is one with file: or local: before it, as fsspec spells paths; else the address."""
    return re.sub(r"^(file|local):(//)?(?=/(?!/))", "", address)


def is_url(address: str) -> bool:
    """Return whether an address is meant as a URL, as s3://bucket/folder, and no path, even if a slash is missing."""
    return re.match(r"[A-Za-z][\w+.-]*:(/|.*://)", address) is not None


def refusal(url: str) -> str | None:
    """Return why a URL is that of no object store; None: it is one."""
    protocol, slashes, rest = url.partition("://")
    if not slashes:
        return f"{url}: a URL has two slashes after the colon, as s3://bucket/folder"
    if protocol in STORES and "::" not in rest:
        return None
    return f"{protocol}://...: is neither a folder nor an object store ({', '.join(sorted(STORES))})"

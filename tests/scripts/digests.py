"""Digests of states, equal if all bits are, by which tests compare trainings."""

import hashlib
import re
from typing import Any

import torch

OF_ONE_GROUP = (
    *("dirpath", "best_model_path", "last_model_path", "total_flos", "_tr_loss", "_total_loss_scalar"),
    *("log_history", "metrics"),
)
FOLDER = re.compile(r"[^'\s]*\bgroup-\d+")  # where each group has its own files


def digest(value: Any) -> str:
    """Return a digest of a state without what each group has for itself."""
    return hashlib.sha256(_said(value).encode()).hexdigest()


def _said(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        local = value.to_local() if hasattr(value, "to_local") else value
        return str(local.detach().cpu().contiguous().view(-1).view(torch.uint8).tolist())
    if isinstance(value, dict):
        return str(
            {
                FOLDER.sub("group", str(key)): _said(one)
                for key, one in value.items()
                if not str(key).endswith(OF_ONE_GROUP)
            }
        )
    return str([_said(one) for one in value]) if isinstance(value, list | tuple) else FOLDER.sub("group", repr(value))

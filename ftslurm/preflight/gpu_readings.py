"""What NVIDIA's management library (NVML) says of the GPUs of this node, as values.

Readings that a GPU or driver does not support are None.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")
# Bits of NVML's clock event reasons: the hardware slows itself down because of heat, or of the power supply.
SLOWED = {0x40: "heat", 0x80: "the power supply"}


class NoNvml(Exception):
    """NVML cannot be used; the message says why."""


@dataclass(frozen=True)
class GpuReading:
    """One GPU."""

    index: int
    uuid: str
    name: str
    used_mb: int | None = None  # memory in use
    processes: tuple[int, ...] | None = None  # PIDs that compute on it
    ecc: int | None = None  # uncorrected errors since its last reset
    rows: tuple[int, int, bool, bool] | None = None  # remapped: correctable, uncorrectable; pending; failed
    pages_pending: bool | None = None  # older GPUs: memory pages will be retired at its next reset
    links: tuple[bool, ...] | None = None  # NVLinks: whether each is active; None or empty: it has none
    celsius: int | None = None
    slowed: tuple[str, ...] = ()  # why the hardware slows itself down now
    problem: str = ""  # why it could not be read


def load() -> Any:
    """Return the module pynvml, initialized.

    Raises:
        NoNvml: it or NVIDIA's library is missing, or does not answer.
    """
    try:
        import pynvml
    except ImportError:
        raise NoNvml("nvidia-ml-py is not installed here (pip install 'ftslurm[gpu]')") from None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise NoNvml(f"NVML: {error}") from error
    return pynvml


def read(nvml: Any, visible: str | None) -> list[GpuReading]:
    """Return the GPUs that this process may use.

    Args:
        nvml: the module pynvml.
        visible: CUDA_VISIBLE_DEVICES; None: all.

    Raises:
        NoNvml: NVML does not even count them.
    """
    try:
        found = [_read_one(nvml, index) for index in range(nvml.nvmlDeviceGetCount())]
    except nvml.NVMLError as error:
        raise NoNvml(f"NVML: {error}") from error
    if visible is None or "MIG-" in visible:  # a share of a GPU has a name of its own
        return found
    wanted = [word.strip() for word in visible.split(",") if word.strip()]
    return [gpu for gpu in found if any(_is(gpu, word) for word in wanted)]


def _is(gpu: GpuReading, word: str) -> bool:
    return word == str(gpu.index) or (word.startswith("GPU-") and gpu.uuid.startswith(word))


def _read_one(nvml: Any, index: int) -> GpuReading:
    try:
        device = nvml.nvmlDeviceGetHandleByIndex(index)
        uuid, name = _text(nvml.nvmlDeviceGetUUID(device)), _text(nvml.nvmlDeviceGetName(device))
    except nvml.NVMLError as error:
        return GpuReading(index, "", "", problem=str(error))

    def ask(question: Callable[[], T]) -> T | None:
        try:
            return question()
        except (nvml.NVMLError, AttributeError):  # not supported by the GPU, or by this version of the library
            return None

    memory = ask(lambda: nvml.nvmlDeviceGetMemoryInfo(device))
    rows = ask(lambda: nvml.nvmlDeviceGetRemappedRows(device))
    pages = ask(lambda: nvml.nvmlDeviceGetRetiredPagesPendingStatus(device)) if rows is None else None
    running = ask(lambda: nvml.nvmlDeviceGetComputeRunningProcesses(device))
    reasons = ask(lambda: nvml.nvmlDeviceGetCurrentClocksEventReasons(device)) or 0
    return GpuReading(
        index,
        uuid,
        name,
        used_mb=None if memory is None else int(memory.used) >> 20,
        processes=None if running is None else tuple(int(one.pid) for one in running),
        ecc=ask(
            lambda: int(
                nvml.nvmlDeviceGetTotalEccErrors(
                    device, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
                )
            )
        ),
        rows=None if rows is None else (int(rows[0]), int(rows[1]), bool(rows[2]), bool(rows[3])),
        pages_pending=None if pages is None else bool(pages),
        links=_links(nvml, device, ask),
        celsius=ask(lambda: int(nvml.nvmlDeviceGetTemperature(device, nvml.NVML_TEMPERATURE_GPU))),
        slowed=tuple(why for bit, why in SLOWED.items() if reasons & bit),
    )


def _links(nvml: Any, device: Any, ask: Callable[[Callable[[], Any]], Any]) -> tuple[bool, ...] | None:
    found = []
    for link in range(nvml.NVML_NVLINK_MAX_LINKS):
        active = ask(lambda link=link: nvml.nvmlDeviceGetNvLinkState(device, link))  # type: ignore[misc]
        if active is None:
            break  # it has no link of this number
        found.append(bool(active))
    return tuple(found) or None


def _text(value: object) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)

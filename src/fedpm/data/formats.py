"""The official file formats as arrays: IDX (MNIST and its kin) and CIFAR's binary batches.

Every size is checked exactly. A file that is cut, is of another kind, or contradicts its partner is an error.
"""

import struct
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from fedpm.data.catalog import Spec
from fedpm.errors import DataError

Images = npt.NDArray[np.uint8]
Labels = npt.NDArray[np.int64]
_IDX_BYTES = 0x0800  # "unsigned byte" of the IDX magic number; its last digit counts the dimensions


def read_idx(data: bytes, name: str, dimensions: int) -> npt.NDArray[np.uint8]:
    """Return the array of a decoded IDX file that should have so many dimensions."""
    header = struct.Struct(f">{1 + dimensions}I")
    if len(data) < header.size:
        raise DataError(f"{name}: {len(data)} bytes are too few for an IDX header; the file is cut: get it again")
    magic, *shape = header.unpack_from(data)
    if magic != _IDX_BYTES + dimensions:
        raise DataError(
            f"{name}: starts with {magic:#010x} and should with {_IDX_BYTES + dimensions:#010x}; "
            "this is not the file that its name says: get it again"
        )
    expected = header.size + int(np.prod(shape, dtype=object))
    if len(data) != expected:
        raise DataError(
            f"{name}: {len(data)} bytes, and its header promises {expected}; the file is cut or damaged: get it again"
        )
    return np.frombuffer(data, np.uint8, offset=header.size).reshape(shape)


def read_cifar(data: bytes, name: str, label_bytes: int) -> tuple[Images, Labels]:
    """Return images (N, 3, 32, 32) and the last label byte of each record (CIFAR-100's fine label)."""
    record = label_bytes + 3 * 32 * 32
    if len(data) == 0 or len(data) % record:
        raise DataError(
            f"{name}: {len(data)} bytes are not a whole number of records of {record} bytes; "
            "the file is cut or of another kind: get it again"
        )
    records = np.frombuffer(data, np.uint8).reshape(-1, record)
    return records[:, label_bytes:].reshape(-1, 3, 32, 32), records[:, label_bytes - 1].astype(np.int64)


def decode(spec: Spec, contents: Mapping[str, bytes]) -> tuple[tuple[Images, Labels], tuple[Images, Labels]]:
    """Return train and test images (N, C, H, W) and labels of a data set's decoded files."""
    train, test = (_decode_part(spec, names, contents) for names in (spec.train, spec.test))
    return train, test


def _decode_part(spec: Spec, names: tuple[str, ...], contents: Mapping[str, bytes]) -> tuple[Images, Labels]:
    if spec.label_bytes:
        batches = [read_cifar(contents[name], name, spec.label_bytes) for name in names]
        images, labels = (np.concatenate(arrays) for arrays in zip(*batches, strict=True))
    else:
        images, labels = _idx_pair(spec, names, contents)
    if int(labels.max()) >= len(spec.classes):
        raise DataError(
            f"{names[-1]}: holds the label {labels.max()}, and {spec.title} has {len(spec.classes)} classes, from 0; "
            "the file is damaged or of another data set: get it again"
        )
    return images, labels


def _idx_pair(spec: Spec, names: tuple[str, ...], contents: Mapping[str, bytes]) -> tuple[Images, Labels]:
    x_name, y_name = names
    x, y = read_idx(contents[x_name], x_name, 3), read_idx(contents[y_name], y_name, 1)
    if len(x) != len(y) or len(y) == 0:
        raise DataError(
            f"{x_name} holds {len(x)} images, {y_name} {len(y)} labels; there should be one label an image: "
            "get both files again"
        )
    if x.shape[1:] != spec.shape[1:]:
        raise DataError(f"{x_name}: images of {x.shape[1:]} pixels; those of {spec.title} have {spec.shape[1:]}")
    if spec.transposed:
        x = x.transpose(0, 2, 1)  # EMNIST stores columns as rows
    return np.array(x[:, None], order="C"), y.astype(np.int64)

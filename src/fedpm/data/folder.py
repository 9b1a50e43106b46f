"""Data of the user's own: a folder with the arrays ``train_x``, ``train_y``, ``test_x`` and ``test_y``.

They are four .npy files of these names, or the members of the one .npz file of the folder. Inputs are
(N, C, H, W) for images; uint8 is scaled to [−1, 1] on use, floats are taken as they are. Labels are integers
from 0, words or truth values. An array ``client`` may name the client of each training example. A file
``classes.txt`` may name the classes, one a line. Pickled objects are never loaded.
"""

import zipfile
import zlib
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedpm.errors import DataError
from fedpm.files import unreadable

NAMES = ("train_x", "train_y", "test_x", "test_y")
CLIENT = "client"
"""Names the client of each training example, if it is there."""
Arrays = dict[str, npt.NDArray[Any]]


def read_folder(path: Path) -> tuple[Arrays, tuple[str, ...] | None]:
    """Return the four arrays of a folder, ``client`` if it is there, and the names of the classes if it has them."""
    npz_files = sorted(path.glob("*.npz"))
    npy_files = {name: path / f"{name}.npy" for name in (*NAMES, CLIENT) if (path / f"{name}.npy").exists()}
    if len(npz_files) + bool(npy_files) > 1:
        listed = ", ".join(p.name for p in [*npz_files, *npy_files.values()])
        raise DataError(f"{path}: holds {listed}; there should be one .npz file, or .npy files only")
    wanted = (*NAMES, CLIENT)
    arrays = load_arrays(npz_files[0], wanted) if npz_files else {n: load_arrays(f)[""] for n, f in npy_files.items()}
    missing = [name for name in NAMES if name not in arrays]
    if missing:
        raise DataError(
            f"{path}: there is no {', '.join(missing)}; a folder should hold {', '.join(NAMES)}, as four .npy files or "
            "in one .npz file, or images; other forms are in docs/data.md"
        )
    return arrays, _class_names(path / "classes.txt")


def load_arrays(file: Path, wanted: Collection[str] = ()) -> Arrays:
    """Return the wanted arrays of a file by name; that of a .npy file has the name ''."""
    try:
        loaded = np.load(file, allow_pickle=False)
        if isinstance(loaded, np.lib.npyio.NpzFile):
            with loaded:
                return {name: loaded[name] for name in loaded.files if name in wanted}
        return {"": loaded}
    except (ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(
            f"{file}: not readable as arrays of numbers ({str(error).splitlines()[0] if str(error) else 'cut'}); "
            "write it with numpy.save or numpy.savez, without objects"
        ) from None
    except OSError as error:
        raise DataError(unreadable(file, error)) from None


def _class_names(file: Path) -> tuple[str, ...] | None:
    if not file.exists():
        return None
    try:
        return tuple(line.strip() for line in file.read_text().splitlines() if line.strip())
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{file}: cannot read the names of the classes ({error})") from None

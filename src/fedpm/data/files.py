"""Files of examples: a .csv table, a .npz file, a folder of images with a folder for each class."""

import csv
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedpm.data.folder import load_arrays
from fedpm.data.lazy import Lazy, lazy
from fedpm.data.tables import Table, check_names
from fedpm.errors import DataError, require
from fedpm.files import absent, unreadable

Array = npt.NDArray[Any]
IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".pgm", ".ppm")


def read_table(where: str, path: Path) -> Table:
    """Return the columns of a .csv file whose first line names them: numbers as such, else words."""
    table = where if where == str(path) else f"{where}: {path}"
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            lines = _lines(file)
    except OSError as error:
        raise DataError(f"{table.removesuffix(str(path))}{unreadable(path, error)}") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{table}: cannot be read as a table ({error}); write it as UTF-8 .csv") from None
    (_, names), *rows = lines or [(1, [])]
    if len(names) == 1 and (other := next((mark for mark in ";\t|" if mark in names[0]), "")):
        raise DataError(
            f"{table}: its names are separated by {other!r}; values should be by commas: in pandas, "
            f"read_csv(…, sep={other!r}).to_csv(…, index=False), with decimal=',' in read_csv if numbers have a comma"
        )
    check_names(where, names)
    if not rows:
        raise DataError(f"{table}: has no rows; there should be a line of names and a line an example")
    for line, row in rows:
        if len(row) != len(names):
            raise DataError(f"{table}: has {len(row)} values in line {line}, and {len(names)} names; mend it")
        if "" in row:
            empty = names[row.index("")]
            raise DataError(f"{table}: column {empty!r} is empty in line {line}; fill it, or leave that line out")
    columns = {name: _typed([row[place] for _, row in rows]) for place, name in enumerate(names)}
    return Table(columns, np.array([line for line, _ in rows]), "line {} of " + path.name)


def _lines(file: Iterable[str]) -> list[tuple[int, list[str]]]:
    """Return the rows of a .csv file, each with the line where it begins; empty ones do not count."""
    reader, found, line = csv.reader(file), list[tuple[int, list[str]]](), 1
    for row in reader:
        if row:
            found.append((line, row))
        line = reader.line_num + 1
    return found


def _typed(values: list[str]) -> Array:
    for kind in (int, float):
        with suppress(ValueError):
            return np.array([kind(value) for value in values])
    return np.array(values)


def read_npz(where: str, path: Path) -> tuple[Array, Array]:
    """Return the members x and y of a .npz file."""
    if not path.exists():
        raise DataError(f"{where}: {path}: {absent(path)}")
    try:
        arrays = load_arrays(path, ("x", "y"))
    except DataError as error:
        raise DataError(f"{where}: {error}") from None
    if missing := [name for name in ("x", "y") if name not in arrays]:
        raise DataError(f"{where}: {path} lacks {' and '.join(missing)}; write it with numpy.savez(…, x=…, y=…)")
    return arrays["x"], arrays["y"]


@dataclass(frozen=True)
class _Images:
    """Reads image files as uint8 (channels, height, width)."""

    files: Sequence[Path]
    where: str

    def name(self, number: int) -> str:
        """Return the file of an image."""
        return str(self.files[number])

    def __call__(self, number: int) -> Array:
        from PIL import Image, UnidentifiedImageError

        file = self.files[number]
        try:
            with Image.open(file) as image:
                if image.mode.startswith(("I", "F")):  # of which a conversion would keep the lowest bits alone
                    raise DataError(
                        f"{self.where}: {file} has more than 8 bits a pixel ({image.mode}); save it with 8 bits"
                    )
                grey = image.mode in ("1", "L")
                pixels = np.asarray(image.convert("L" if grey else "RGB"))
        except (OSError, UnidentifiedImageError, SyntaxError) as error:
            raise DataError(f"{self.where}: {file} cannot be read as an image ({error}); remove or mend it") from None
        return pixels[None] if grey else np.ascontiguousarray(pixels.transpose(2, 0, 1))


def read_images(where: str, folder: Path) -> tuple[Lazy, Array]:
    """Return the images of a folder ``class/*.png``, read when asked for, and the names of their folders."""
    require("images", "a folder of images", "PIL")
    files = [file for group in folders(folder) for file in images(group)]
    if not files:
        refuse_loose(where, folder)
        raise DataError(f"{where}: {folder} has no images; it should hold a folder for each class, with images in it")
    reader = _Images(files, where)
    return lazy(reader, len(files), where, reader.name), np.array([file.parent.name for file in files])


def refuse_loose(where: str, folder: Path) -> None:
    """Refuse images that lie in no folder of a class."""
    if loose := images(folder):
        raise DataError(
            f"{where}: {folder} holds {loose[0].name} and no folder for each class; put images where their class is "
            "the name of the folder: class/*.png, for several clients client/class/*.png"
        )


def hold_classes(path: Path) -> bool:
    """Return whether a folder holds folders of images."""
    return any(map(images, folders(path)))


def folders(path: Path) -> list[Path]:
    """Return the folders in a folder, sorted by name; hidden ones do not count."""
    return sorted(child for child in path.iterdir() if child.is_dir() and not child.name.startswith("."))


def images(path: Path) -> list[Path]:
    """Return the images in a folder, sorted by name."""
    return sorted(file for file in path.iterdir() if file.suffix.lower() in IMAGES)

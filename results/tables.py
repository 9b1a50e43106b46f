"""Write the tables of README.md from the runs beside this file: python results/tables.py."""

from pathlib import Path

from fedpm.study.overview import mean_and_deviation, overview
from fedpm.study.results import Collection, collect

HERE = Path(__file__).parent
START = "## Tables\n"
ROUNDS = {
    "effort": (5, 10, 25),
    "gamma": (10, 20, 40),
    "iid-cifar10": (5, 10, 20),
    "iid-cifar100": (6, 12, 24),
    "iid-digits": (5, 10, 20),
    "iid-digits-ten": (1, 2, 3, 4),
    "iid-emnist": (5, 10, 20),
    "iid-mnist": (5, 10, 15, 25),
    "mnist-paper": (1, 2, 3, 4, 5),
    "pretrained-images": (2, 5, 10),
    "pretrained-text": (2, 4, 8),
    "resnet18-cifar100": (2, 5, 10),
    "rivals": (10, 20),
    "table1": (5, 10, 25),
}
"""After which rounds the accuracy of a study is shown."""


def accuracies(collection: Collection, rounds: tuple[int, ...]) -> tuple[list[str], list[list[str]]]:
    """Return head and rows of test accuracy after so many rounds, mean ± σ of the seeds."""
    rows = []
    for group in collection.groups:
        reached = [[run.records[number - 1]["accuracy"] for run in group.runs] for number in rounds]
        rows.append([*group.labels.values(), *map(mean_and_deviation, reached)])
    return [*collection.axes, *map(str, rounds)], rows


def tables() -> str:
    """Return all tables: of each study, accuracy by rounds, then bits and bytes."""
    words = "Written by `python results/tables.py`. Accuracy after so many rounds, then what it took."
    lines = [START.strip(), "", words]
    for study in sorted(path.parent.name for path in HERE.glob("*/study.toml")):
        (collection,) = collect([HERE / study])
        lines += ["", f"### {study}"]
        for head, rows in (accuracies(collection, ROUNDS[study]), overview(collection)):
            lines += ["", *(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows))]
    return "\n".join(lines) + "\n"


def written() -> str:
    """Return README.md as it should be."""
    return (HERE / "README.md").read_text().partition(START)[0] + tables()


if __name__ == "__main__":
    (HERE / "README.md").write_text(written())

"""Compare the mask coders on one run: bits for the very same masks, and how relative-entropy coding distorts them.

python -m benchmarks coder_bits --figure docs/figures/coders.svg               # quickstart: 10 minutes on 2 cores
python -m benchmarks coder_bits --set rounds=3 --set local.epochs=1            # a short look

The run itself uses shared-randomness; in every round each client's θ_k is also coded by the others. Of one client, some
rounds are uploaded many times over by relative-entropy coding, with fresh candidates each time.
"""

import argparse
from pathlib import Path
from statistics import mean

import numpy as np
from tests.makers import coding_of

import fedpm
from fedpm.registry import CODERS, OWN_FORMS, CoderSpec, register
from fedpm.rng import Streams
from fedpm.training.scores import divergence
from fedpm.wire.coders.base import Context
from fedpm.wire.coders.relative_entropy import RelativeEntropy, proposals
from fedpm.wire.entropy import Coded
from fedpm.wire.masks import Mask
from fedpm.wire.theta import Vector

USED = "shared-randomness"
SETTINGS = {f"relative-entropy, budget {budget:g}": RelativeEntropy(8, budget) for budget in (3.0, 4.0, 5.0)}


class Recorder:
    """The coder of the run, which also tries the others."""

    def __init__(self) -> None:
        self._coder = coding_of(USED).coder
        others = [s.name for s in CODERS if not s.secure and s.name not in (USED, "relative-entropy")]
        self._others = {name: coding_of(name).coder for name in others} | SETTINGS
        self.bits: dict[str, dict[int, list[float]]] = {}
        self.kept: dict[int, tuple[Vector, Context]] = {}

    def encode(self, theta: Vector, context: Context, private: Streams) -> tuple[Mask, Coded]:
        """Code θ_k by every coder."""
        for name, coder in self._others.items():
            self._note(name, context, 8 * len(coder.encode(theta, context, private)[1].data) / len(theta))
        mask, coded = self._coder.encode(theta, context, private)
        self._note(USED, context, 8 * len(coded.data) / len(theta))
        self._note("KL(θ_k ‖ θ_g)", context, divergence(theta, context.theta.floats().clip(0.01, 0.99)))
        if context.shared.client == 0:
            self.kept[context.shared.round] = theta, context
        return mask, coded

    def decode(self, data: bytes, context: Context) -> Mask:
        """Decode what the run sent."""
        return self._coder.decode(data, context)

    def _note(self, name: str, context: Context, bpp: float) -> None:
        self.bits.setdefault(name, {}).setdefault(context.shared.round, []).append(bpp)


def distortion(theta: Vector, context: Context, coder: RelativeEntropy, count: int) -> dict[str, float]:
    """Return bias and variance of many uploads, beside those of exact samples.

    ``kept`` is how much of the way from θ_g to θ_k the mean goes, ``away`` and ``towards`` of that away from 0 and 1
    and towards them; ``bias`` the root mean square of what it lacks; ``variance`` that of an upload, over θ_k(1 − θ_k).
    """
    total = np.zeros(len(theta))
    for number in range(count):
        here = Context(context.theta, context.shared.at(10_000 + number), context.sizes)
        total += coder.encode(theta, here, Streams(number))[0]
    average, exact = total / count, theta.astype(np.float64)
    start = proposals(context.theta) / 256
    way = exact - start
    noise = exact * (1 - exact) / count  # of the average of exact samples
    gone, due, away = (average - start) * way, way**2, (way > 0) == (start < 0.5)
    return {
        "kept": float(gone.sum() / due.sum()),
        "away": float(gone[away].sum() / due[away].sum()),
        "towards": float(gone[~away].sum() / due[~away].sum()),
        "bias": float(np.sqrt(max(0.0, ((average - exact) ** 2 - noise).mean()))),
        "move": float(np.sqrt((way**2).mean())),
        "variance": float((average * (1 - average)).mean() * count / (count - 1) / (exact * (1 - exact)).mean()),
    }


def draw(bits: dict[str, dict[int, list[float]]], path: Path) -> None:
    """Draw bits per round, the limit as a dashed line."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "fedpm"
    from matplotlib import pyplot as plt
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axes = plt.subplots(figsize=(7.5, 4.2), layout="constrained")[1]
    for name, rounds in bits.items():
        values = [mean(bpp) for bpp in rounds.values()]
        (line,) = axes.plot(list(rounds), values)
        if name.startswith("KL"):
            line.set(color="#7a7a7a", linestyle="--")
        end = (max(rounds), values[-1])
        axes.annotate(name, end, (6, 0), textcoords="offset points", va="center", fontsize=8, color=line.get_color())
    axes.set(yscale="log", xlabel="round", ylabel="bits per parameter, up")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    plt.savefig(path, metadata={"Date": None})


def main(parser: argparse.ArgumentParser, arguments: list[str]) -> None:
    """Run, and print tables as Markdown."""
    parser.add_argument("--preset", default="quickstart")
    parser.add_argument("--set", action="append", default=[], dest="overrides", metavar="KEY=VALUE")
    parser.add_argument("--figure", type=Path)
    parser.add_argument("--uploads", type=int, default=100, help="how many uploads to average for the bias")
    options = parser.parse_args(arguments)
    recorder = Recorder()
    register(
        CoderSpec(
            name="recorder",
            label="recorder",
            about=f"{USED}, which also tries the others",
            build=lambda settings: recorder,
            form=OWN_FORMS,
            shared_randomness=True,
            shared_uniform=True,
        )
    )
    config = fedpm.load_config(options.preset, [*options.overrides, "workers=1", "codec=recorder"])
    fedpm.run(config, progress=True)
    shown = sorted({1, max(1, config.rounds // 2), config.rounds})
    print(f"| bits per parameter | {' | '.join(f'round {number}' for number in shown)} | mean |")
    print(f"|---|{'---|' * len(shown)}---|")
    for name, rounds in recorder.bits.items():
        cells = [mean(rounds[number]) for number in shown] + [mean(mean(bpp) for bpp in rounds.values())]
        print(f"| {name} | {' | '.join(f'{cell:.4f}' for cell in cells)} |")
    print("\n| coder | round | kept | away | towards | bias | move | variance |\n|---|---|---|---|---|---|---|---|")
    for name, coder in SETTINGS.items():
        for number in shown:
            figures = distortion(*recorder.kept[number], coder, options.uploads)
            print(f"| {name} | {number} | {' | '.join(f'{value:.4f}' for value in figures.values())} |")
    if options.figure:
        draw(recorder.bits, options.figure)

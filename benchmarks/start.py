"""How alike inputs look behind the layers of an untrained network, by where θ starts.

python -m benchmarks start                          # conv4-slim on MNIST, seeds 0 to 4
python -m benchmarks start --data digits --model conv4

A line has the mean cosine between the outputs of a layer for two images: 1 means that they cannot be told apart.
"""

import argparse

INITS = ("half", "zero-sum")


def main(parser: argparse.ArgumentParser, arguments: list[str]) -> None:
    """Print a table, a line a start, a column a layer."""
    parser.add_argument("--data", default="mnist")
    parser.add_argument("--model", default="conv4-slim")
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args(arguments)
    import numpy as np
    import torch
    import torch.nn.functional as F

    import fedpm
    from fedpm.data.datasets import to_input
    from fedpm.model.masking import MaskedNetwork
    from fedpm.model.nets import build
    from fedpm.model.start import starting_theta

    data = fedpm.load_dataset(options.data)
    x = to_input(data.train.x[:256], torch.device("cpu"))
    for init in INITS:
        network = MaskedNetwork(build(options.model, tuple(x.shape[1:]), len(data.classes)), init=init)
        cosines = []
        for seed in range(options.seeds):
            found: list[float] = []

            def note(layer: torch.nn.Module, given: object, output: torch.Tensor, to: list[float] = found) -> None:
                rows = F.normalize(output.flatten(1))
                to.append(float((rows @ rows.T).sum() - len(rows)) / len(rows) / (len(rows) - 1))

            module = network.masked_module(starting_theta(network, seed) > 0, seed, network.initial_stats())
            for layer in module.modules():
                if isinstance(layer, torch.nn.ReLU):
                    layer.register_forward_hook(note)
            with torch.inference_mode():
                note(module, None, module(x))
            cosines.append(found)
        print(init, *(f"{cosine:.2f}" for cosine in np.mean(cosines, 0)))

"""Train a mask over your own network on your own data, and ship it as one small file.

Run it with: python examples/own_network.py
"""

import torch
from torch import nn

import fedpm
from fedpm.data.datasets import digits


class Net(nn.Module):
    """Two hidden layers; norm layers go without affine parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, 128), nn.BatchNorm1d(128, affine=False), nn.ReLU(), nn.Linear(128, 128))
        self.head = nn.Linear(128, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return a score for each class."""
        scores: torch.Tensor = self.head(torch.relu(self.body(x)))
        return scores


def main() -> None:
    """Train on rows of 64 numbers (here the pixels of digits) at 8 clients, test on others."""
    train, test = digits().train, digits().test  # in your program: arrays or tensors of your own
    x, x_test = train.x.reshape(-1, 64), test.x.reshape(-1, 64)
    data = fedpm.dataset(train=(x, train.y), test=(x_test, test.y), classes=tuple("0123456789"))

    local = {"epochs": 5, "batch_size": 32}
    result = fedpm.run("quickstart", rounds=6, clients={"total": 8}, local=local, net=Net(), data=data, keep="best")
    print(f"accuracy {result.summary['accuracy']:.2f}, model file of {result.summary['model_bytes']} bytes")

    result.file.save("model.fedpm")
    model = fedpm.load("model.fedpm", net=Net())
    print("first row of the test:", data.classes[int(model(torch.from_numpy(data.test.x[:1])).argmax())])


if __name__ == "__main__":
    main()

"""Train a mask over your own network on your own data, and ship it as one small file.

Run it with: python examples/own_network.py
"""

import torch
from sklearn.datasets import load_breast_cancer
from sklearn.preprocessing import StandardScaler
from torch import nn

import fedpm


class Net(nn.Module):
    """Two hidden layers; norm layers go without affine parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(30, 128), nn.BatchNorm1d(128, affine=False), nn.ReLU(), nn.Linear(128, 128))
        self.head = nn.Linear(128, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return a score for each class."""
        scores: torch.Tensor = self.head(torch.relu(self.body(x)))
        return scores


def main() -> None:
    """Train on 469 patients spread over 8 hospitals, test on 100."""
    x, y = load_breast_cancer(return_X_y=True)
    x = StandardScaler().fit(x[:469]).transform(x)
    data = fedpm.dataset(train=(x[:469], y[:469]), test=(x[469:], y[469:]), classes=("malignant", "benign"))

    config = fedpm.load_config("quickstart", ["clients.total=8", "rounds=10", "local.epochs=5", "local.batch_size=32"])
    result = fedpm.run(config, net=Net(), data=data)
    print(f"accuracy {result.summary['accuracy']:.2f}, model file of {result.summary['model_bytes']} bytes")

    result.file.save("model.fedpm")
    model = fedpm.load("model.fedpm", net=Net())
    print("first patient:", data.classes[int(model(torch.from_numpy(data.test.x[:1])).argmax())])


if __name__ == "__main__":
    main()

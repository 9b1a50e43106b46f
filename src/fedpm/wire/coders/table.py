"""The mask coders by name."""

from fedpm.wire.coders.relative_entropy import RelativeEntropy
from fedpm.wire.masks import Frequency, MaskCoder, SharedRandomness, SideInformation

CODERS: dict[str, tuple[int, MaskCoder]] = {
    "frequency": (1, Frequency()),
    "side-information": (2, SideInformation()),
    "shared-randomness": (3, SharedRandomness()),
    "relative-entropy": (6, RelativeEntropy()),
}
"""Each coder with its number on the wire; what one was configured with is in its messages, and any reads them."""

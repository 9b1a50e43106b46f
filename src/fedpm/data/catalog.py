"""What is known of each public data set: its official files, their checksums, and where they are to be had.

``sha256`` is of the decoded files. Those of MNIST and CIFAR-10 were taken from files whose official md5 was
confirmed first; EMNIST is known by its archive alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Spec:
    """A public data set as it is published.

    ``train`` and ``test`` name the decoded files: images and labels of an IDX pair (``label_bytes`` is 0), or
    CIFAR's binary batches with so many label bytes before each image.
    """

    name: str
    title: str
    train: tuple[str, ...]
    test: tuple[str, ...]
    counts: tuple[int, int]
    shape: tuple[int, ...]
    classes: tuple[str, ...]
    megabytes: int
    mirrors: tuple[str, ...]
    archives: Mapping[str, str]  # official archive -> md5
    folders: tuple[str, ...]  # where a data folder may hold the files, as patterns
    sha256: Mapping[str, str] = field(default_factory=dict)
    local_archives: tuple[str, ...] = ()  # patterns of archives that are read without unpacking them to disk
    label_bytes: int = 0
    transposed: bool = False

    @property
    def files(self) -> tuple[str, ...]:
        """The decoded files of the whole set."""
        return self.train + self.test


def _idx(part: str) -> tuple[str, str]:
    return f"{part}-images-idx3-ubyte", f"{part}-labels-idx1-ubyte"


_MNIST = Spec(
    name="mnist",
    title="MNIST",
    train=_idx("train"),
    test=_idx("t10k"),
    counts=(60_000, 10_000),
    shape=(1, 28, 28),
    classes=tuple("0123456789"),
    megabytes=12,
    mirrors=(
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
    ),
    archives={
        "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
        "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
        "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
    },
    sha256={
        "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    },
    folders=("mnist", "MNIST/raw", "MNIST", "."),
)

_FASHION = Spec(
    name="fashion-mnist",
    title="Fashion-MNIST",
    train=_idx("train"),
    test=_idx("t10k"),
    counts=(60_000, 10_000),
    shape=(1, 28, 28),
    classes=("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot"),
    megabytes=31,
    mirrors=("https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",),
    archives={
        "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
        "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
        "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
    },
    sha256={
        "train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        "t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    },
    folders=("fashion-mnist", "FashionMNIST/raw", "FashionMNIST", "fashion", "."),
)

_EMNIST = Spec(
    name="emnist",
    title="EMNIST-47",
    train=_idx("emnist-balanced-train"),
    test=_idx("emnist-balanced-test"),
    counts=(112_800, 18_800),
    shape=(1, 28, 28),
    classes=tuple("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabdefghnqrt"),
    megabytes=562,
    mirrors=("https://biometrics.nist.gov/cs_links/EMNIST/",),
    archives={"gzip.zip": "58c8d27c78d21e728a6bc7b3cc06412e"},
    local_archives=("gzip.zip", "emnist*.zip"),
    folders=("emnist", "EMNIST/raw", "EMNIST", ".", "emnist*", "gzip"),
    transposed=True,
)

_CIFAR10 = Spec(
    name="cifar10",
    title="CIFAR-10",
    train=tuple(f"data_batch_{number}.bin" for number in range(1, 6)),
    test=("test_batch.bin",),
    counts=(50_000, 10_000),
    shape=(3, 32, 32),
    classes=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    megabytes=170,
    mirrors=("https://www.cs.toronto.edu/~kriz/",),
    archives={"cifar-10-binary.tar.gz": "c32a1d4ab5d03f1284b67883e8d87530"},
    sha256={
        "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
        "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
        "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
        "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
        "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
        "test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
    },
    local_archives=("cifar-10-binary*.tar.gz",),
    folders=("cifar10", "cifar-10-batches-bin", "."),
    label_bytes=1,
)

_CIFAR100 = Spec(
    name="cifar100",
    title="CIFAR-100",
    train=("train.bin",),
    test=("test.bin",),
    counts=(50_000, 10_000),
    shape=(3, 32, 32),
    classes=tuple(
        """
        apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can
        castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin
        elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster
        man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck
        pine_tree plain plate poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk
        skyscraper snail snake spider squirrel streetcar sunflower sweet_pepper table tank telephone television tiger
        tractor train trout tulip turtle wardrobe whale willow_tree wolf woman worm
        """.split()  # noqa: SIM905
    ),
    megabytes=169,
    mirrors=("https://www.cs.toronto.edu/~kriz/",),
    archives={"cifar-100-binary.tar.gz": "03b5dce01913d631647c71ecec9e9cb8"},
    sha256={
        "train.bin": "f31298fc616915fa142368359df1c4ca2ae984d6915ca468b998a5ec6aeebf29",
        "test.bin": "d8b1e6b7b3bee4020055f0699b111f60b1af1e262aeb93a0b659061746f8224a",
    },
    local_archives=("cifar-100-binary*.tar.gz",),
    folders=("cifar100", "cifar-100-binary"),
    label_bytes=2,
)

_REUTERS = Spec(
    name="reuters",
    title="Reuters-21578, 8 topics",
    train=("articles.json",),
    test=(),
    counts=(1121, 370),
    shape=(48,),
    classes=("earn", "acq", "crude", "trade", "money-fx", "interest", "ship", "sugar"),
    megabytes=21,
    mirrors=(),
    archives={},
    sha256={"articles.json": "00fec1c87419901801395e3908a5197d01398fa1a25e442214c4005779256e68"},
    folders=("reuters",),
)

_MINILM = Spec(
    name="minilm",
    title="all-MiniLM-L6-v2, a pretrained network",
    train=("model.safetensors", "vocab.txt"),
    test=(),
    counts=(0, 0),
    shape=(48,),
    classes=(),
    megabytes=84,
    mirrors=(),
    archives={},
    sha256={
        "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        "vocab.txt": "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
    },
    folders=("minilm",),
)

_EFFICIENTNET = Spec(
    name="efficientnet-lite0",
    title="EfficientNet-Lite0, a pretrained network",
    train=("efficientnet-lite0-57934424.pth",),
    test=(),
    counts=(0, 0),
    shape=(3, 64, 64),
    classes=(),
    megabytes=17,
    mirrors=(),
    archives={},
    sha256={"efficientnet-lite0-57934424.pth": "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"},
    folders=("efficientnet-lite0",),
)

_ALL = (_MNIST, _EMNIST, _FASHION, _CIFAR10, _CIFAR100, _REUTERS, _MINILM, _EFFICIENTNET)
SPECS = {spec.name: spec for spec in _ALL}
"""The public data sets by name, and what is got in the same way: the values of pretrained networks."""

FILE_BY_SHA256 = {checksum: (spec.name, file) for spec in SPECS.values() for file, checksum in spec.sha256.items()}
"""Which file of which data set a checksum of decoded content belongs to."""

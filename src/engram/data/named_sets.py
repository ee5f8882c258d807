"""The sets that have a name of their own: where their files lie, or what makes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from engram.data.dataset import Data
from engram.data.embedded.drawn_faces import faces
from engram.data.embedded.drawn_glyphs import glyphs
from engram.data.embedded.drawn_shapes import shapes
from engram.data.embedded.made_up_texts import chatter, requests
from engram.data.embedded.small_sets import blobs, digits
from engram.data.embedded.synthetic_skeletons import skeletons


@dataclass(frozen=True)
class NamedSet:
    """A set with a name of its own.

    `places` are looked for under the search root, in that order, before packed files; `form` is
    the form they must have, and `holds` what is in it. `rows` are the official numbers of training
    and test rows, in `classes` of equal size if that is given.
    """

    summary: str
    make: Callable[..., Data] | None = None
    form: str = ""
    places: tuple[str, ...] = ()
    rows: tuple[int, int] | None = None
    classes: int = 0
    holds: str = ""


NAMED_SETS: dict[str, NamedSet] = {
    "digits": NamedSet("1797 real handwritten digits, 8x8, embedded", digits),
    "blobs": NamedSet("Gaussian clusters, generated on the fly", blobs),
    "shapes": NamedSet(
        "kinds of shapes in several variations, generated on the fly, 16x16", shapes
    ),
    "skeletons": NamedSet("ten actions of a jointed figure, generated on the fly", skeletons),
    "faces": NamedSet(
        "eight expressions of drawn faces, 32x32 colour, generated on the fly", faces
    ),
    "requests": NamedSet("20 intents of made-up requests in four domains, texts", requests),
    "chatter": NamedSet("sentences that ask for nothing, texts; outside set", chatter),
    "glyphs": NamedSet("an invented script, generated on the fly, 28x28; outside set", glyphs),
    "mnist": NamedSet(
        "handwritten digits, 28x28",
        form="idx",
        rows=(60000, 10000),
        places=("mnist", "MNIST", "MNIST/raw", "mnist/MNIST/raw", "."),
    ),
    "fashion_mnist": NamedSet(
        "images of clothing, 28x28",
        form="idx",
        rows=(60000, 10000),
        classes=10,
        places=(
            "fashion_mnist",
            "fashion-mnist",
            "FashionMNIST",
            "FashionMNIST/raw",
            "fashion_mnist/FashionMNIST/raw",
            ".",
        ),
    ),
    "cifar10": NamedSet(
        "ten kinds of objects, 32x32 colour",
        form="CIFAR",
        rows=(50000, 10000),
        classes=10,
        places=(
            "cifar-10-batches-py",
            "cifar-10-python.tar.gz",
            "cifar10",
            "cifar10/cifar-10-batches-py",
            "cifar10/cifar-10-python.tar.gz",
        ),
    ),
    "cifar100": NamedSet(
        "a hundred kinds of objects in twenty groups, 32x32 colour",
        form="CIFAR",
        rows=(50000, 10000),
        classes=100,
        places=(
            "cifar-100-python",
            "cifar-100-python.tar.gz",
            "cifar100",
            "cifar100/cifar-100-python",
            "cifar100/cifar-100-python.tar.gz",
            "cifar-100-binary",
            "cifar-100-binary.tar.gz",
            "cifar100/cifar-100-binary",
            "cifar100/cifar-100-binary.tar.gz",
        ),
    ),
    "nw_ucla": NamedSet(
        "ten actions of 20 joints in three views, 52 frames",
        form="NW-UCLA",
        places=("nw_ucla", "NW-UCLA/all_sqe", "NW-UCLA", "all_sqe", "nw_ucla/all_sqe"),
    ),
    "ntu60": NamedSet(
        "actions of 25 joints, two persons, 300 frames; ten of 60 classes by default",
        form="NTU",
        places=(
            "ntu60",
            "ntu60/xsub",
            "NTU60_CS.npz",
            "ntu60/NTU60_CS.npz",
            "ntu/NTU60_CS.npz",
            "nturgb+d_skeletons",
            "nturgbd_raw/nturgb+d_skeletons",
            "NTU-RGB-D/xsub",
            "xsub",
        ),
    ),
    "fer2013": NamedSet(
        "seven facial expressions, 48x48 grey; size=100 for RGB",
        form="FER",
        rows=(28709, 3589),
        places=("fer2013.csv", "fer2013/fer2013.csv", "fer2013", "FER-2013", "FER2013"),
        holds="a table emotion,pixels,Usage, or train and test with a folder for each expression",
    ),
    "ck_plus": NamedSet(
        "eight facial expressions of 123 subjects, 100x100 colour",
        form="CK+",
        places=("ck_plus", "CK+", "ck+", "CKPlus", "."),
        holds="folders cohn-kanade-images and Emotion",
    ),
    "raf_db": NamedSet(
        "seven facial expressions in the wild, 100x100 colour",
        form="RAF-DB",
        rows=(12271, 3068),
        places=("raf_db", "RAF-DB", "RAF_DB", "raf-db", "RAFDB"),
        holds="EmoLabel/list_patition_label.txt, Image and Annotation",
    ),
    "affectnet": NamedSet(
        "eight facial expressions in the wild, 100x100 colour",
        form="AffectNet",
        places=("affectnet", "AffectNet"),
        holds="training.csv and validation.csv, or train_set and val_set with annotations",
    ),
    "icv_mefed": NamedSet(
        "eight facial expressions of 125 subjects by dominance, 100x100 colour",
        form="iCV-MEFED",
        places=("icv_mefed", "iCV-MEFED", "iCV_MEFED"),
        holds="lists or folders training and testing, labelled A_B",
    ),
    "baum1": NamedSet(
        "eight spontaneous expressions, frames of clips, 100x100 colour",
        form="BAUM-1",
        places=("baum1", "BAUM-1", "BAUM1"),
        holds="a list such as Annotations_BAUM1s.csv, and frames",
    ),
    "imagenet": NamedSet(
        "a thousand kinds of objects by WordNet id, 224x224 colour; an index unless packed",
        form="ImageNet",
        places=("imagenet", "ImageNet", "ILSVRC2012", "imagenet/ILSVRC2012"),
    ),
    "tiny_imagenet": NamedSet(
        "200 kinds of objects, 64x64 colour",
        form="Tiny",
        rows=(100000, 10000),
        classes=200,
        places=("tiny-imagenet-200", "tiny_imagenet", "tiny_imagenet/tiny-imagenet-200"),
    ),
    "flowers102": NamedSet(
        "102 kinds of flowers, 64x64 colour",
        form="Flowers",
        rows=(1020, 6149),
        places=("flowers102", "flowers-102", "oxford_flowers", "Flowers", "Flower"),
    ),
    "mit67": NamedSet(
        "67 kinds of indoor scenes, 64x64 colour",
        form="MIT-67",
        rows=(5360, 1340),
        places=("mit67", "MIT67", "indoorCVPR_09", "Scenes", "scenes"),
    ),
    "cub200": NamedSet(
        "200 kinds of birds, 64x64 colour",
        form="CUB-200",
        rows=(5994, 5794),
        places=("CUB_200_2011", "cub200", "cub200/CUB_200_2011"),
    ),
    "stanford_cars": NamedSet(
        "196 models of cars, 64x64 colour",
        form="Stanford Cars",
        rows=(8144, 8041),
        places=("stanford_cars", "cars", "Cars"),
    ),
    "aircraft": NamedSet(
        "100 variants of aircraft, 64x64 colour",
        form="FGVC-Aircraft",
        rows=(3334, 3333),
        places=("fgvc-aircraft-2013b", "aircraft", "fgvc_aircraft", "AirCraft"),
    ),
    "voc_actions": NamedSet(
        "eleven actions of persons, 64x64 colour",
        form="VOC actions",
        places=("VOCdevkit/VOC2012", "VOC2012", "voc_actions", "voc2012/VOCdevkit/VOC2012"),
    ),
    "chars74k": NamedSet(
        "52 letters in photographs or fonts, 64x64 colour",
        form="Chars74K",
        places=("chars74k", "Chars74K", "English", "EnglishImg", "EnglishFnt"),
    ),
    "svhn": NamedSet(
        "digits of house numbers, 32x32 colour",
        form="SVHN",
        rows=(73257, 26032),
        places=("svhn", "SVHN", "."),
    ),
    "eight_task": NamedSet(
        "flowers102, mit67, cub200, ..., svhn as one set, 64x64 colour",
        form="Eight-Task",
        places=("eight_task", "."),
    ),
    "clinc150": NamedSet(
        "requests of 150 intents in ten domains, texts",
        form="CLINC150",
        rows=(15000, 4500),
        classes=150,
        places=(
            "clinc150",
            "clinc150/data_full.json",
            "data_full.json",
            "clinc150.json.gz",
            "clinc150.json",
            "oos-eval/data",
        ),
        holds="data_full.json of the public repository",
    ),
    "clinc150_oos": NamedSet(
        "requests of no intent of clinc150, texts; outside set",
        form="CLINC150",
        places=(
            "clinc150",
            "clinc150/data_full.json",
            "data_full.json",
            "clinc150.json.gz",
            "clinc150.json",
            "oos-eval/data",
        ),
        holds="data_full.json of the public repository",
    ),
    "multi_domain": NamedSet("flowers, scenes, birds, cars, letters, 64x64 colour (packed)"),
}

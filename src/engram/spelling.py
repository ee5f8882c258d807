"""Words: which valid name was meant by one that is not, and how many there are of something."""

from __future__ import annotations

from collections.abc import Iterable

# What PyTorch, other libraries and papers call our names: letters only, as `nearest` compares them.
# A word may stand for several; it is offered where the name is a valid one.
FIELDS = {
    "lr": "learningrate stepsize eta",
    "epochs": "numepochs nepochs trainepochs maxepochs",
    "batch_size": "bs minibatchsize trainbatchsize trainmbsize",
    "weight_decay": "wd l2",
    "precision": "amp mixedprecision fp16 bf16 half",
    "total": "size capacity memsize buffersize maxsize",
    "loss": "criterion objective lossfn",
    "schedule": "lrscheduler lrschedule",
    "seeds": "seed nseeds numseeds randomstate repetitions repeats",
    "model": "net network backbone architecture arch",
    "method": "strategy algorithm approach plugins plugin",
    "data": "dataset benchmark",
    "strength": "lambda lamda lamb ewclambda regstrength penalty",
    "memory": "buffer buffersize memsize memorysize replaybuffer",
    "classes_per_task": "increment nclassespertask",
    "hidden": "hiddensize hiddendim hiddensizes units",
}
OTHER_WORDS = {
    **FIELDS,
    # losses
    "ce": "crossentropy crossentropyloss xent softmax nll nllloss categoricalcrossentropy",
    "bce": "binarycrossentropy binarycrossentropywithlogits sigmoid multilabelsoftmarginloss",
    # optimisers, schedules, precision, devices, augmentations
    "sgd": "momentum nesterov",
    "step": "multisteplr multistep",
    "plateau": "reducelronplateau reduceonplateau",
    "constant": "none constantlr fixed",
    "float32": "fp32 single full 32",
    "float64": "fp64 double 64",
    "bf16": "bfloat16 fp16 float16 half 16 amp mixed autocast",
    "cuda": "gpu",
    "crop": "randomcrop",
    "resized_crop": "randomresizedcrop",
    "flip": "randomhorizontalflip horizontalflip",
    # methods
    "Finetune": "naive sequential baseline sgdbaseline vanilla none lowerbound",
    "Joint": "multitask offline upperbound jointtraining iid",
    "IncrementalJoint": "cumulative",
    "EWC": "elasticweightconsolidation",
    "SI": "synapticintelligence pathintegral pi",
    "MAS": "memoryawaresynapses",
    "LwF": "learningwithoutforgetting",
    "ER": "experiencereplay",
    "DERpp": "der der++ darkexperiencereplay",
    "EWCpp": "ewc++",
    "GEM": "gradientepisodicmemory",
    "AGEM": "averagedgem",
    "DGR": "generativereplay deepgenerativereplay",
    "NaiveRehearsal": "rehearsal",
    "RWalk": "riemannianwalk",
    # networks
    "mlp": "fc linear dense perceptron simplemlp",
    "cnn": "convnet simplecnn conv",
    # metrics
    "backward_transfer": "bwt",
    "forward_transfer": "fwt",
    "average_accuracy": "acc aca accuracy",
    "auroc": "auc rocauc",
    # pools
    "processes": "multiprocessing workers",
    "serial": "sequential",
}
MODULES = ("torch", "torchvision", "nn", "optim", "F")  # that a name may be written with


def nearest(name: object, valid: Iterable[str]) -> str | None:
    """The valid name that was probably meant: another word for it, a slip away, or cut short.

    A third of the letters may be wrong, missing, added or swapped with their neighbour, three at
    most; capitals, underscores and hyphens do not count, nor do the modules of PyTorch in front.
    (`difflib` offers SI for "size", and nothing for "temp".)

    Examples
    --------
    >>> nearest("finetun", ["Finetune", "ER"]), nearest("batch", ["batch_size", "patience"])
    ('Finetune', 'batch_size')
    >>> nearest("strenght", ["latent", "strength"]), nearest("strenght", ["latent", "length"])
    ('strength', None)
    >>> nearest("CrossEntropyLoss", ["bce", "ce"]), nearest("torch.optim.AdamW", ["adam", "adamw"])
    ('ce', 'adamw')
    """
    written = _letters(name)
    names = {one: _letters(one) for one in valid}
    same = [one for one in names if written in OTHER_WORDS.get(one, "").split()]
    longer = [one for one, letters in names.items() if _begins(letters, written)]
    slips = {one: misspelt(written, letters) for one, letters in names.items()}
    near = [one for one in names if slips[one] <= min(3, max(len(written), len(names[one])) // 3)]
    shorter = [one for one, letters in names.items() if _begins(written, letters)]
    found = same or longer or near or shorter
    return min(found, key=lambda one: (slips[one], len(one)), default=None)


def misspelt(a: str, b: str) -> int:
    """How many letters to change, add, drop or swap with their neighbour to get `b` from `a`.

    Examples
    --------
    >>> misspelt("strenght", "strength"), misspelt("hearding", "herding"), misspelt("ER", "SI")
    (1, 1, 2)
    """
    before: list[int] = []
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        oldest, before, row = before, row, [i]
        for j, y in enumerate(b, 1):
            cost = min(before[j] + 1, row[-1] + 1, before[j - 1] + (x != y))
            if i > 1 and j > 1 and (x, y) == (b[j - 2], a[i - 2]):
                cost = min(cost, oldest[j - 2] + 1)
            row.append(cost)
    return row[-1]


def _letters(name: object) -> str:
    text = str(name)
    if text.partition(".")[0] in MODULES:
        text = text.rpartition(".")[2]
    return text.lower().replace("_", "").replace("-", "").replace(" ", "")


def _begins(long: str, short: str) -> bool:
    """Whether a name begins with another one that is long enough to tell which is meant."""
    return len(short) >= 3 and long.startswith(short)


def plural(count: int, noun: str) -> str:
    """A number of things.

    Examples
    --------
    >>> plural(1, "run"), plural(3, "class"), plural(1200, "row")
    ('1 run', '3 classes', '1,200 rows')
    """
    return f"{count:,} {noun}" + ("" if count == 1 else "es" if noun.endswith("s") else "s")

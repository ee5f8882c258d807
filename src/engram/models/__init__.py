"""Networks: backbones, heads, layers that support row weights and keys, and the adapter for user
modules.

Training is in `engram.engine`, the weights of a run in `engram.learner`. Begin with `build` (from a
name to a `Classifier`), then `mlp`, the shortest network.
"""

from __future__ import annotations

from engram.models.adapter import adapt
from engram.models.build import build, models
from engram.models.classifier import Classifier
from engram.models.cnn import CNN
from engram.models.forward_pass import KEY, ROW_WEIGHTS, Output, forward_context
from engram.models.gcn import GCN
from engram.models.heads import Cosine, Linear
from engram.models.layers import BatchNorm, Dropout
from engram.models.lenet import LeNet
from engram.models.mlp import MLP
from engram.models.resnet import ResNet, resnet18_slim, resnet32
from engram.models.skeleton_graphs import SKELETONS
from engram.models.stgcn import STGCN
from engram.models.vae_generator import VAEGenerator

__all__ = [
    "CNN",
    "GCN",
    "KEY",
    "MLP",
    "ROW_WEIGHTS",
    "SKELETONS",
    "STGCN",
    "VAEGenerator",
    "BatchNorm",
    "Classifier",
    "Cosine",
    "Dropout",
    "LeNet",
    "Linear",
    "Output",
    "ResNet",
    "adapt",
    "build",
    "forward_context",
    "models",
    "resnet18_slim",
    "resnet32",
]

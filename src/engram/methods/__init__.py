"""Continual-learning methods, one file each; parts shared by several are in `quadratic_penalty`,
`fisher`, `frozen_root` and `first_session`.

Exemplar memories are in `engram.memory`, the training loop in `engram.engine`. Begin with
`method.Method`, the contract, then `finetune` and `er`.
"""

from __future__ import annotations

from engram.methods.adam_nscl import AdamNSCL
from engram.methods.agem import AGEM
from engram.methods.aper import APER
from engram.methods.bic import BiC
from engram.methods.cbrs import CBRS
from engram.methods.classifier_alignment import ClassifierAlignment
from engram.methods.clser import CLSER
from engram.methods.coda_prompt import CODAPrompt
from engram.methods.derpp import DERpp
from engram.methods.dgr import DGR
from engram.methods.dual_prompt import DualPrompt
from engram.methods.dynamic_er import DynamicER
from engram.methods.ease import EASE
from engram.methods.er import ER
from engram.methods.er_ace import ERACE
from engram.methods.er_infinite import ERInfinite
from engram.methods.ewc import EWC
from engram.methods.ewcpp import EWCpp
from engram.methods.fdr import FDR
from engram.methods.fecam import FeCAM
from engram.methods.finetune import Finetune
from engram.methods.foster import FOSTER
from engram.methods.gdumb import GDumb
from engram.methods.gem import GEM
from engram.methods.gpm import GPM
from engram.methods.gss import GSS
from engram.methods.hat import HAT
from engram.methods.icarl import ICaRL
from engram.methods.incremental_joint import IncrementalJoint
from engram.methods.inflora import InfLoRA
from engram.methods.join import Join
from engram.methods.joint import Joint
from engram.methods.l2p import L2P
from engram.methods.lamaml import LaMAML
from engram.methods.latent_replay import LatentReplay
from engram.methods.lgr import LGR
from engram.methods.lucir import LUCIR
from engram.methods.lwf import LwF
from engram.methods.mas import MAS
from engram.methods.mer import MER
from engram.methods.mir import MIR
from engram.methods.naive_rehearsal import NaiveRehearsal
from engram.methods.ncm import NCM
from engram.methods.online_ewc import OnlineEWC
from engram.methods.owm import OWM
from engram.methods.packnet import PackNet
from engram.methods.pcr import PCR
from engram.methods.pnn import PNN
from engram.methods.podnet import PODNet
from engram.methods.ranpac import RanPAC
from engram.methods.replay import Replay
from engram.methods.rwalk import RWalk
from engram.methods.scr import SCR
from engram.methods.separate_networks import SeparateNetworks
from engram.methods.si import SI
from engram.methods.slca import SLCA
from engram.methods.slda import SLDA
from engram.methods.ssil import SSIL
from engram.methods.supsup import SupSup
from engram.methods.twp import TWP
from engram.methods.wa import WA
from engram.methods.xder import XDER
from engram.methods.xdg import XdG

__all__ = [
    "AGEM",
    "APER",
    "CBRS",
    "CLSER",
    "DGR",
    "ER",
    "EASE",
    "ERACE",
    "EWC",
    "FDR",
    "FOSTER",
    "GEM",
    "GPM",
    "GSS",
    "HAT",
    "L2P",
    "LGR",
    "LUCIR",
    "MAS",
    "MER",
    "MIR",
    "NCM",
    "OWM",
    "PCR",
    "PNN",
    "SCR",
    "SI",
    "SLCA",
    "SLDA",
    "SSIL",
    "TWP",
    "WA",
    "XDER",
    "AdamNSCL",
    "BiC",
    "CODAPrompt",
    "ClassifierAlignment",
    "DERpp",
    "DualPrompt",
    "DynamicER",
    "ERInfinite",
    "EWCpp",
    "FeCAM",
    "Finetune",
    "GDumb",
    "ICaRL",
    "IncrementalJoint",
    "InfLoRA",
    "Join",
    "Joint",
    "LaMAML",
    "LatentReplay",
    "LwF",
    "NaiveRehearsal",
    "OnlineEWC",
    "PODNet",
    "PackNet",
    "RWalk",
    "RanPAC",
    "Replay",
    "SeparateNetworks",
    "SupSup",
    "XdG",
]

"""Continual-learning methods, one file each; parts shared by several are in `quadratic_penalty`,
`fisher` and `frozen_root`.

Exemplar memories are in `engram.memory`, the training loop in `engram.engine`. Begin with
`method.Method`, the contract, then `finetune` and `er`.
"""

from __future__ import annotations

from engram.methods.adam_nscl import AdamNSCL
from engram.methods.agem import AGEM
from engram.methods.bic import BiC
from engram.methods.cbrs import CBRS
from engram.methods.clser import CLSER
from engram.methods.derpp import DERpp
from engram.methods.dgr import DGR
from engram.methods.dynamic_er import DynamicER
from engram.methods.er import ER
from engram.methods.er_ace import ERACE
from engram.methods.er_infinite import ERInfinite
from engram.methods.ewc import EWC
from engram.methods.ewcpp import EWCpp
from engram.methods.finetune import Finetune
from engram.methods.gdumb import GDumb
from engram.methods.gem import GEM
from engram.methods.gpm import GPM
from engram.methods.gss import GSS
from engram.methods.hat import HAT
from engram.methods.icarl import ICaRL
from engram.methods.incremental_joint import IncrementalJoint
from engram.methods.join import Join
from engram.methods.joint import Joint
from engram.methods.latent_replay import LatentReplay
from engram.methods.lgr import LGR
from engram.methods.lucir import LUCIR
from engram.methods.lwf import LwF
from engram.methods.mas import MAS
from engram.methods.mir import MIR
from engram.methods.naive_rehearsal import NaiveRehearsal
from engram.methods.online_ewc import OnlineEWC
from engram.methods.packnet import PackNet
from engram.methods.pcr import PCR
from engram.methods.pnn import PNN
from engram.methods.replay import Replay
from engram.methods.rwalk import RWalk
from engram.methods.scr import SCR
from engram.methods.si import SI
from engram.methods.slda import SLDA
from engram.methods.ssil import SSIL
from engram.methods.supsup import SupSup
from engram.methods.twp import TWP
from engram.methods.wa import WA

__all__ = [
    "AGEM",
    "CBRS",
    "CLSER",
    "DGR",
    "ER",
    "ERACE",
    "EWC",
    "GEM",
    "GPM",
    "GSS",
    "HAT",
    "LGR",
    "LUCIR",
    "MAS",
    "MIR",
    "PCR",
    "PNN",
    "SCR",
    "SI",
    "SLDA",
    "SSIL",
    "TWP",
    "WA",
    "AdamNSCL",
    "BiC",
    "DERpp",
    "DynamicER",
    "ERInfinite",
    "EWCpp",
    "Finetune",
    "GDumb",
    "ICaRL",
    "IncrementalJoint",
    "Join",
    "Joint",
    "LatentReplay",
    "LwF",
    "NaiveRehearsal",
    "OnlineEWC",
    "PackNet",
    "RWalk",
    "Replay",
    "SupSup",
]

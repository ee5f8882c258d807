"""Training and evaluation of runs: the loop over tasks, sampling, optimisers, checkpoints, one
run alone or hundreds in lockstep.

Not here: what a method computes (engram.methods), what is measured (engram.probes), recipes and
worker pools (engram.experiments), files of results (engram.records). Begin with
engine.Engine.stages, then loop.train_task and the optimiser step in trainers.single.
"""

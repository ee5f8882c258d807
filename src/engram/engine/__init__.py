"""Training and evaluation of runs: the task loop, sampling, optimisers, lockstep, checkpoints.

Methods are in `engram.methods`, probes in `engram.probes`, recipes and worker pools in
`engram.experiments`, files of results in `engram.records`. Begin with `engine.Engine.stages`, then
`loop.train_task` and the optimiser step in `trainers.single`.
"""

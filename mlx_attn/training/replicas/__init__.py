"""Several trainings at once: seeds and learning rates of one form, as one compiled step.

    replicas = replicas_of(with_seeds(settings, 4), corpus)
    for replica, report in train_replicas(replicas, Together()): ...

Each replica is an ordinary `Trainer`, with its own run, batches, schedule and clipping, and its
losses are those of a training of its own. On a GPU a small model is bound by the launches of its
kernels, which are shared here; on a processor `pays_off` finds out what sharing gains.
"""

from mlx_attn.training.replicas.launch import Launch, Together, in_turn
from mlx_attn.training.replicas.loop import train_replicas
from mlx_attn.training.replicas.probe import pays_off, speedup, step_seconds, step_times
from mlx_attn.training.replicas.replica import VARIED, Replica, check_alike, replicas_of, with_seeds
from mlx_attn.training.replicas.step import ReplicaStep

__all__ = [
    "VARIED",
    "Launch",
    "Replica",
    "ReplicaStep",
    "Together",
    "check_alike",
    "in_turn",
    "pays_off",
    "replicas_of",
    "speedup",
    "step_seconds",
    "step_times",
    "train_replicas",
    "with_seeds",
]

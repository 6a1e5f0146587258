"""Training: a run as data, the loop, checkpoints and metrics."""

from fp4lab.train.config import DataConfig, FitConfig, ModelConfig, OptimConfig, RunConfig
from fp4lab.train.evaluation import Evaluation, evaluate
from fp4lab.train.folder import FitResult
from fp4lab.train.generation import generate
from fp4lab.train.listeners import progress
from fp4lab.train.loop import fit
from fp4lab.train.run import train
from fp4lab.train.task import LanguageTask, MeasuredTask, Task

__all__ = [
    "DataConfig",
    "Evaluation",
    "FitConfig",
    "FitResult",
    "LanguageTask",
    "MeasuredTask",
    "ModelConfig",
    "OptimConfig",
    "RunConfig",
    "Task",
    "evaluate",
    "fit",
    "generate",
    "progress",
    "train",
]

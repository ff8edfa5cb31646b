"""Chooses devices for pods: algorithms get columns of nodes with devices and return scores. Nothing here does I/O."""

from .algorithms import DEFAULT, DeviceAlgorithm, UnknownAlgorithm, algorithm_names, find_algorithm
from .chooser import Choice, Chooser
from .columns import WHOLE, DeviceColumns, DeviceRequest, Options
from .mix import RequestMix

__all__ = [
    "DEFAULT",
    "WHOLE",
    "Choice",
    "Chooser",
    "DeviceAlgorithm",
    "DeviceColumns",
    "DeviceRequest",
    "Options",
    "RequestMix",
    "UnknownAlgorithm",
    "algorithm_names",
    "find_algorithm",
]

"""Resource classes: typed properties of devices, and selectors over them.

`compile_class` makes a `Selector` of a class's spec; `Selector.matches` answers for one device, `ClassIndex` for one device and
many classes, `moorage.parts.PropertyTable` for one class and the devices of a fleet.
"""

from .class_index import ClassIndex, KeyConditions
from .class_rules import OPERATORS, class_problems, class_warnings
from .conditions import DIAGNOSTICS, Properties, holds, meets
from .selector import BUILT_IN, CLUSTER, DRIVER, KIND, NAME, NODE, NOTHING, NUMA, VENDOR, Selector, compile_class
from .typed_values import identity, text_of

__all__ = [
    "BUILT_IN",
    "CLUSTER",
    "DIAGNOSTICS",
    "DRIVER",
    "KIND",
    "NAME",
    "NODE",
    "NOTHING",
    "NUMA",
    "OPERATORS",
    "VENDOR",
    "ClassIndex",
    "KeyConditions",
    "Properties",
    "Selector",
    "class_problems",
    "class_warnings",
    "compile_class",
    "holds",
    "identity",
    "meets",
    "text_of",
]

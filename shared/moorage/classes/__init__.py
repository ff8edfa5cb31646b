"""Resource classes: typed properties of devices, and selectors over them.

`compile_class` makes a `Selector` of a class's spec; `Selector.matches` answers for one device, `ClassIndex` for one device and
many classes, `moorage.parts.PropertyTable` for one class and the devices of a fleet.
"""

from .class_index import ClassIndex, KeyConditions
from .class_rules import OPERATORS, class_problems, class_warnings
from .conditions import DIAGNOSTICS, Properties, holds, meets
from .grants import Grants
from .selector import BUILT_IN, CLUSTER, DRIVER, KIND, NAME, NODE, NOTHING, NUMA, VENDOR, Selector, compile_class
from .source_rules import grant_problems, quota_problems, source_problems
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
    "Grants",
    "KeyConditions",
    "Properties",
    "Selector",
    "class_problems",
    "class_warnings",
    "compile_class",
    "grant_problems",
    "holds",
    "identity",
    "meets",
    "quota_problems",
    "source_problems",
    "text_of",
]

"""Resource classes: typed properties of devices, and selectors over them.

`compile_class` makes a `Selector` of a class's spec; `Selector.matches` answers for one device, `ClassIndex` for one device and
many classes, `moorage.parts.PropertyTable` for one class and the devices of a fleet.
"""

from .catalog import ALGORITHM, ALGORITHM_KEY, ClassCatalog, KnownClass
from .class_index import ClassIndex, KeyConditions
from .class_rules import OPERATORS, class_problems, class_warnings
from .conditions import DIAGNOSTICS, Properties, holds, meets
from .device_class import DeviceClass, device_class
from .device_sources import BUILT_IN_ONLY, BUILT_IN_SOURCES, DeviceSources, read_value, with_built_in
from .grants import AskedClass, Grants, asked_classes
from .selector import (
    ALL_DEVICES,
    BUILT_IN,
    CLUSTER,
    DRIVER,
    KIND,
    NAME,
    NODE,
    NOTHING,
    NUMA,
    VENDOR,
    Selector,
    compile_class,
)
from .source_rules import grant_problems, quota_problems, source_problems
from .typed_values import identity, text_of

__all__ = [
    "ALGORITHM",
    "ALGORITHM_KEY",
    "ALL_DEVICES",
    "BUILT_IN",
    "BUILT_IN_ONLY",
    "BUILT_IN_SOURCES",
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
    "AskedClass",
    "ClassCatalog",
    "ClassIndex",
    "DeviceClass",
    "DeviceSources",
    "Grants",
    "KeyConditions",
    "KnownClass",
    "Properties",
    "Selector",
    "asked_classes",
    "class_problems",
    "class_warnings",
    "compile_class",
    "device_class",
    "grant_problems",
    "holds",
    "identity",
    "meets",
    "quota_problems",
    "read_value",
    "source_problems",
    "text_of",
    "with_built_in",
]

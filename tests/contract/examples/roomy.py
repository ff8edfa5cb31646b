import numpy as np

from moorage.fit import FitCache
from moorage.sdk import allow, controller

fits: dict = {}  # by fleet


@controller("roomy", capacity=True)
def roomy(ask, fleet):
    """Allows clusters that hold all pods of an app and have half of their memory free."""
    cache = fits.setdefault(fleet, FitCache(fleet))
    free, allocatable = fleet.sums("memory")
    half_free = 2 * free >= allocatable
    return {
        app.name: allow(np.logical_and.reduce([half_free, *(cache.get(shape).fits for shape in app.shapes)]))
        for app in ask.apps
    }

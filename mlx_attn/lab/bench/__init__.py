"""How fast a model is, beside the time that its matrix products alone would take.

Every figure is measured in turns with what it is compared with, in one process, so that what else
the machine does meets all of them alike. `measure.bench` is the entrance.
"""

"""Every chart of the page as PNG, one file each; no browser is needed."""

from functools import partial

from .images import report_images

report = partial(report_images, form="png")

"""Readers of image sets in their official forms: idx files, CIFAR, ImageNet, the eight sets of
Eight-Task.

Plain image folders are in `data.image_folder`, decoding and resizing in `data.images`. Begin with
`photo_lists` (lists of photographs of one size), then `eight_task_sets`.
"""

from __future__ import annotations

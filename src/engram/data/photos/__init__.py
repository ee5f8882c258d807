"""Readers of image sets in their official forms: idx files, CIFAR, ImageNet, the eight sets of
Eight-Task.

Plain image folders are in `data.image_folder`, decoding in `data.images`, pictures of many sizes in
`data.picture_sets`. Begin with `cifar`; eight sets that differ in their lists are in
`eight_task_sets`.
"""

from __future__ import annotations

"""Videos as folders of frames, by the extra ``engram[video]``."""

from __future__ import annotations

import shutil
from pathlib import Path

from engram.errors import BadArgument, bad

VIDEOS = (".mp4", ".avi", ".mov", ".mkv")


def extract_frames(video: Path, folder: Path) -> Path:
    """Write every frame of a video into `folder`, which appears once it is complete; returns it."""
    if folder.is_dir():
        return folder
    try:
        import av
    except ImportError:
        raise BadArgument(
            f"{video}: videos need PyAV: pip install 'engram[video]', or unpack the frames into a "
            f"folder named {video.stem}"
        ) from None
    unfinished = folder.with_name(f".{folder.name}")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    try:
        with av.open(str(video)) as container:
            for number, frame in enumerate(container.decode(video=0)):
                frame.to_image().save(unfinished / f"{number:06d}.png")
    except (OSError, ValueError) as problem:  # PyAV's errors are of these kinds
        shutil.rmtree(unfinished, ignore_errors=True)
        raise bad(str(video), "a readable video", str(problem)) from None
    unfinished.replace(folder)
    return folder

"""Unit multipliers and the few conversions shown to people. Pure: no I/O, no clock."""

KIB = 1024
MIB = 1024**2
GIB = 1024**3

MINUTE_S = 60.0
HOUR_S = 3600.0
DAY_S = 24 * HOUR_S


def format_bytes(size_bytes: float) -> str:
    """Return a size as people read it: ``format_bytes(3 * GIB) == '3.0 GiB'``."""
    for unit, scale in (("TiB", 1024 * GIB), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if abs(size_bytes) >= scale:
            return f"{size_bytes / scale:.1f} {unit}"
    return f"{size_bytes:.0f} B"


def format_duration(duration_s: float) -> str:
    """Return a duration in its two largest units: ``format_duration(3700) == '1h01m'``."""
    if duration_s < MINUTE_S:
        return f"{duration_s:.1f}s"
    minutes, seconds = divmod(round(duration_s), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days}d{hours:02d}h"
    return f"{hours}h{minutes:02d}m" if hours else f"{minutes}m{seconds:02d}s"


def format_count(count: int, what: str) -> str:
    """Return a count with its noun, in the plural where it is not one: ``format_count(1, 'job') == '1 job'``."""
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"
